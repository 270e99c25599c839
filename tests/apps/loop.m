# Matrices, cells, structures, strings. One line per turn.
rand ("twister", 1:625);
m = rand (300);
c = {};
for turn = 1:str2double (argv (){1})
  m = m * m;
  m = m / max (abs (m(:)));
  e = (m + 300 * eye (300)) \ ones (300, 1);
  c{end+1} = sprintf ("%d:%s", turn, num2str (sum (m(:)), 17));
  s.(sprintf ("f%d", mod (turn, 7))) = numel (c);
  for k = 1:3000
    t = mod (k * turn, 17);
  endfor
  printf ("%d %s %s %d %d\n", turn, num2hex (sum (m(:)) + sum (e)), c{end}, numel (fieldnames (s)), t);
  fflush (stdout);
endfor
printf ("PASS\n");
