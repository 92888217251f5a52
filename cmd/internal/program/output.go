// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"io"
	"sync"
)

// Output holds the writers of a program.
type Output struct{ Stdout, Stderr io.Writer }

// Printf writes to standard output.
func (o Output) Printf(format string, args ...any) { fmt.Fprintf(o.Stdout, format, args...) }

// Framed calls f, and prints a line before and after it that rdma-core's
// examples print at the start and at the end.
func (o Output) Framed(program string, f func() error) error {
	o.Printf("%s: start\n", program)
	if err := f(); err != nil {
		return err
	}
	o.Printf("%s: end 0\n", program)
	return nil
}

// written calls f with a writer to stdout, and returns f's exit status. If f
// succeeds but writing to stdout has failed, written prints the error and
// returns the status of a failure.
func written(name string, stdout, stderr io.Writer, f func(stdout io.Writer) int) int {
	w := &checked{w: stdout}
	status := f(w)
	w.mu.Lock()
	defer w.mu.Unlock()
	if status != 0 || w.err == nil {
		return status
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, w.err)
	return exitFailed
}

// checked is a writer that keeps the first error.
type checked struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

func (c *checked) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.w.Write(b)
	if c.err == nil {
		c.err = err
	}
	return n, err
}
