// A Go program: workers that hash what they allocate, a TCP server and its client in the same process, a ticker,
// garbage collections. Its runtime handles all signals and makes its system calls itself. Built with hasher_c.go it is
// linked dynamically, with hasher_go.go statically.
package main

import (
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
)

func main() {
	rounds, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	var wg sync.WaitGroup
	jobs := make(chan int)
	results := make(chan [32]byte, 8)
	for i := 0; i < 4; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := range jobs {
				data := make([]byte, 1<<20)
				for k := range data {
					data[k] = byte(j * k)
				}
				results <- sha256.Sum256(data)
			}
		}()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				b := make([]byte, 100)
				for {
					n, err := c.Read(b)
					if err != nil {
						return
					}
					c.Write(b[:n])
				}
			}()
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	total := sha256.New()
	for r := 0; r < rounds; r++ {
		go func() {
			for i := 0; i < 8; i++ {
				jobs <- r*8 + i
			}
		}()
		var sum [32]byte
		for i := 0; i < 8; i++ {
			h := <-results
			for k := range sum {
				sum[k] ^= h[k]
			}
		}
		total.Write(sum[:])
		msg := fmt.Sprintf("round %d", r)
		if _, err := c.Write([]byte(msg)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		b := make([]byte, 100)
		n, err := c.Read(b)
		if err != nil || string(b[:n]) != msg {
			fmt.Println("echo", err, string(b[:n]))
			os.Exit(1)
		}
		<-tick.C
		runtime.GC()
		fmt.Println(msg, twice(r))
	}
	close(jobs)
	wg.Wait()
	fmt.Printf("%x\n", total.Sum(nil))
}
