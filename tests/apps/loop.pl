# Hashes, regular expressions, closures, sorting, a signal handler and an alarm. One line per turn.
use strict; use warnings; use Time::HiRes qw(setitimer ITIMER_REAL);
$| = 1;
my $turns = shift // 100;
my ($alarms, %table, @subs) = (0);
$SIG{ALRM} = sub { $alarms++ };
setitimer(ITIMER_REAL, 0.01, 0.01);
for my $turn (0 .. $turns - 1) {
    for my $i (0 .. 9999) { $table{($turn * 7919 + $i * 104729) % 20011} .= chr(97 + ($i + $turn) % 26); }
    for my $k (keys %table) { $table{$k} = substr($table{$k}, -12); }
    my $matches = 0;
    for my $v (values %table) { $matches++ while $v =~ /([aeiou])[^aeiou]+/g; }
    push @subs, sub { $_[0] * ($turn + 1) };
    my $sum = 0; $sum += $_->($turn) for @subs;
    my $sorted = join '', map { $table{$_} } (sort { $a <=> $b } keys %table)[0 .. 20];
    print "$turn $matches $sum $sorted\n";
}
setitimer(ITIMER_REAL, 0);
die "no alarm" unless $alarms;
print "PASS\n";
