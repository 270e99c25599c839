// No C in a Go program: so it is linked statically.
package main

func twice(x int) int { return 2 * x }
