package rdmacm_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// crowdEnv holds the address that this program connects to, many times, when it
// runs as the peer of TestScale.
const crowdEnv = "VERBENA_RDMACM_CROWD"

// usage is what a process takes from the system.
type usage struct {
	Threads, Files, Maps int
	RSS, Heap, Stacks    int // KiB
}

func measure() (u usage, err error) {
	runtime.GC()
	runtime.GC() // what cleanups of the first have freed
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	u.Heap, u.Stacks = int(mem.HeapAlloc>>10), int(mem.StackInuse>>10)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		for name, n := range map[string]*int{"Threads": &u.Threads, "VmRSS": &u.RSS} {
			if rest, ok := strings.CutPrefix(line, name+":"); ok {
				fmt.Sscan(rest, n)
			}
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return u, err
	}
	u.Maps = strings.Count(string(maps), "\n")
	files, err := os.ReadDir("/proc/self/fd")
	u.Files = len(files)
	return u, err
}

// each returns what each of n connections has added.
func (u usage) each(before usage, n int) string {
	per := func(after, before int) float64 { return float64(after-before) / float64(n) }
	return fmt.Sprintf("%.1f KiB resident (%.1f of Go's heap, %.1f of stacks), %.2f descriptors, %.2f mappings",
		per(u.RSS, before.RSS), per(u.Heap, before.Heap), per(u.Stacks, before.Stacks),
		per(u.Files, before.Files), per(u.Maps, before.Maps))
}

// crowd connects as often as standard input says, says what that took, and
// waits for more, until it is killed.
func crowd(address string) {
	fmt.Fprintln(os.Stderr, "crowd:", func() error {
		ctx := context.Background()
		conns := 0
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			want, err := strconv.Atoi(in.Text())
			if err != nil {
				return err
			}
			if err := joinMany(ctx, address, conns, want); err != nil {
				return err
			}
			conns = want
			u, err := measure()
			if err != nil {
				return err
			}
			if err := json.NewEncoder(os.Stdout).Encode(u); err != nil {
				return err
			}
		}
		return nil
	}())
	os.Exit(1)
}

// joinMany makes the connections from the first number up to the limit, a few at
// a time.
func joinMany(ctx context.Context, address string, first, limit int) error {
	const atOnce = 8
	results := make(chan error, atOnce)
	for i := range atOnce {
		go func() {
			for number := first + i; number < limit; number += atOnce {
				if err := join(ctx, address, uint64(number)); err != nil {
					results <- fmt.Errorf("connection %d: %w", number, err)
					return
				}
			}
			results <- nil
		}()
	}
	var errs []error
	for range atOnce {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}

// join connects, has a number sent back, and leaves the connection waiting for
// a message.
func join(ctx context.Context, address string, number uint64) error {
	var mr *ibverbs.MR
	var answer *rdmacm.Receive
	conn, err := rdmacm.Dial(ctx, address, &rdmacm.Config{Setup: receiveFirst(&mr, &answer)})
	if err != nil {
		return err
	}
	binary.NativeEndian.PutUint64(mr.Bytes(), number)
	if err := conn.Send(ctx, mr.Sub(0, 8)); err != nil {
		return err
	}
	if _, err := answer.Wait(ctx); err != nil {
		return err
	}
	if got := binary.NativeEndian.Uint64(mr.Bytes()[8:]); got != ^number {
		return fmt.Errorf("answer %#x", got)
	}
	go func() { _, _ = conn.Recv(ctx, mr.Sub(8, 8)) }()
	return nil
}

// receiveFirst is a Config.Setup that posts a receive into the second half of
// 16 bytes.
func receiveFirst(mr **ibverbs.MR, first **rdmacm.Receive) func(*rdmacm.Conn) error {
	return func(c *rdmacm.Conn) (err error) {
		if *mr, err = c.Alloc(16, ibverbs.AccessLocalWrite); err != nil {
			return err
		}
		*first, err = c.PostRecv((*mr).Sub(8, 8))
		return err
	}
}

// serveOne accepts a request, answers the first message, and returns what ended
// the connection then.
func serveOne(ctx context.Context, req *rdmacm.Request, answered func(*rdmacm.Conn, uint64)) error {
	var mr *ibverbs.MR
	var first *rdmacm.Receive
	conn, err := req.Accept(ctx, &rdmacm.Config{Setup: receiveFirst(&mr, &first)})
	if err != nil {
		return err
	}
	if _, err := first.Wait(ctx); err != nil {
		return err
	}
	number := binary.NativeEndian.Uint64(mr.Bytes()[8:])
	next, err := conn.PostRecv(mr.Sub(8, 8))
	if err != nil {
		return err
	}
	binary.NativeEndian.PutUint64(mr.Bytes(), ^number)
	if err := conn.Send(ctx, mr.Sub(0, 8)); err != nil {
		return err
	}
	answered(conn, number)
	_, err = next.Wait(ctx)
	return err
}
