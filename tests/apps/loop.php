<?php
// Arrays, strings, objects, exceptions, generators, a hash of everything. Its extensions are loaded with RTLD_DEEPBIND.
// One line per turn.
class Item { public function __construct(public int $key, public ?Item $next = null) {} }
function numbers() { for ($n = 1;; $n = $n * 48271 % 2147483647) yield $n; }
$turns = (int)($argv[1] ?? 300);
$numbers = numbers();
$table = []; $list = null; $hash = hash_init('sha256');
for ($turn = 0; $turn < $turns; $turn++) {
    for ($i = 0; $i < 30000; $i++) {
        $key = ($turn * 7919 + $i * 104729) % 20011;
        $table[$key] = substr(($table[$key] ?? '') . chr(97 + ($i + $turn) % 26), -12);
    }
    $list = new Item($turn, $turn % 50 ? $list : null);
    try { if ($turn % 3 == 0) throw new RuntimeException("turn $turn"); }
    catch (RuntimeException $error) { hash_update($hash, $error->getMessage()); }
    $numbers->next();
    hash_update($hash, serialize($list) . preg_replace('/[aeiou]/', '', implode($table)));
    echo $turn, ' ', hash_final(hash_copy($hash)), ' ', $numbers->current(), ' ', count($table), "\n";
}
echo "PASS\n";
