// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/softroce"
)

func init() { hostPrograms["callbacks"] = callbacks }

// A fault function and a writer of Capture may call whatever does not call
// RDMA, may end their goroutine, and may start goroutines that call everything.
func TestCallbacksCallEverything(t *testing.T) {
	for name := range callers {
		t.Run(name, func(t *testing.T) {
			p := process.Run(t, process.Command(t, "callbacks", name))
			require.Zero(t, p.Wait(), p.Output())
		})
	}
}

// called has the results of the goroutines that a callback has started.
type called struct {
	ctx     context.Context
	address string
	once    sync.Once
	results chan error
	mu      sync.Mutex
	packets int
}

// callers install a callback, which calls c.callback for each packet, and
// return what ends it.
var callers = map[string]func(c *called) (end func() error, err error){
	"SetFaults": func(c *called) (func() error, error) {
		softroce.SetFaults(func(p softroce.Packet) softroce.Fault {
			c.callback(p.Kind.String())
			return softroce.Fault{}
		})
		return func() error { softroce.SetFaults(nil); return nil }, nil
	},
	"SetFaults, ends its goroutine": func(c *called) (func() error, error) {
		softroce.SetFaults(func(p softroce.Packet) softroce.Fault {
			c.callback(p.Kind.String())
			runtime.Goexit()
			return softroce.Fault{}
		})
		return func() error { softroce.SetFaults(nil); return nil }, nil
	},
	"Capture": func(c *called) (func() error, error) {
		return softroce.Capture(writer(func(b []byte) (int, error) {
			c.callback("a packet")
			return len(b), nil
		}))
	},
	"Capture, ends its goroutine": func(c *called) (func() error, error) {
		header := true
		stop, err := softroce.Capture(writer(func(b []byte) (int, error) {
			if !header {
				c.callback("a packet")
				runtime.Goexit()
			}
			header = false
			return len(b), nil
		}))
		return func() error {
			if err := stop(); err == nil || !strings.Contains(err.Error(), "runtime.Goexit") {
				return fmt.Errorf("stop returns %w", err)
			}
			return nil
		}, err
	},
	"Capture, the header": func(c *called) (func() error, error) {
		header := true
		return softroce.Capture(writer(func(b []byte) (int, error) {
			if header {
				header = false
				if err := c.everything(); err != nil {
					return 0, err
				}
			}
			c.callback("a packet")
			return len(b), nil
		}))
	},
}

// writer is a function that writes.
type writer func(b []byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// callback calls what needs no RDMA. The first call starts goroutines that call
// everything else, of which some begin while the device is held up.
func (c *called) callback(text string) {
	c.mu.Lock()
	c.packets++
	c.mu.Unlock()
	fmt.Fprintln(io.Discard, text, os.Getpid())
	runtime.Gosched()
	c.once.Do(func() {
		began := make(chan struct{})
		for range cap(c.results) {
			go func() {
				began <- struct{}{}
				c.results <- c.everything()
			}()
			<-began
		}
		runtime.GC()
	})
}

// everything calls each function of this package, and RDMA.
func (c *called) everything() error {
	if _, err := send(c.ctx, c.address, "from a callback"); err != nil {
		return err
	}
	ln, err := rdmacm.ListenDatagram(c.ctx, "127.0.0.1:0", nil)
	if err != nil {
		return err
	}
	if _, err := rdmacm.Devices(); err != nil {
		return err
	}
	stop, err := softroce.Capture(io.Discard)
	if err != nil {
		return err
	}
	_, err = softroce.Processes(c.ctx)
	return errors.Join(err, stop(), ln.Close(), softroce.Use(softroce.Config{}), softroce.SetPort(true),
		softroce.SetAddresses([]netip.Addr{netip.MustParseAddr("127.0.0.1")}), softroce.SetAddresses(nil))
}

// callbacks is the program: args name the callback. It fails if a call does not
// return.
func callbacks(args []string, _, stderr io.Writer) int {
	if err := callFrom(args[0]); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func callFrom(name string) error {
	if err := softroce.Use(softroce.Config{}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	config = nil // with which the device tries again: callbacks hold it up
	address, messages, err := server(ctx)
	if err != nil {
		return err
	}
	go func() {
		for range messages { // so that the server goes on
		}
	}()
	c := &called{ctx: ctx, address: address, results: make(chan error, 4)}
	done := make(chan error, 1)
	go func() { done <- c.run(callers[name]) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		stacks := make([]byte, 1<<20)
		err = fmt.Errorf("a call does not return:\n%s", stacks[:runtime.Stack(stacks, true)])
	}
	return err
}

func (c *called) run(install func(c *called) (func() error, error)) error {
	end, err := install(c)
	if err != nil {
		return err
	}
	if _, err := send(c.ctx, c.address, "hello"); err != nil {
		return err
	}
	for range cap(c.results) {
		if err := <-c.results; err != nil {
			return err
		}
	}
	if err := end(); err != nil {
		return err
	}
	if c.packets == 0 {
		return errors.New("no packet was seen")
	}
	_, err = send(c.ctx, c.address, "afterwards")
	return err
}
