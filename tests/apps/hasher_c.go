// C in a Go program: so it is linked dynamically.
package main

/*
static int twice(int x) { return 2 * x; }
*/
import "C"

func twice(x int) int { return int(C.twice(C.int(x))) }
