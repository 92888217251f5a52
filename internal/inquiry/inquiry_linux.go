// SPDX-License-Identifier: Apache-2.0

package inquiry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"
)

// maxAnswer limits the size of a process's answer, in bytes.
const maxAnswer = 64 << 20

// Serve answers the processes of the same user that connect to the listener,
// one after the other, until it is closed. The function answer returns the
// answer. A process that does not take it has Timeout, or until ctx ends.
func Serve(ctx context.Context, listener net.Listener, answer func() []byte) {
	serve(ctx, listener, Timeout, answer)
}

func serve(ctx context.Context, listener net.Listener, timeout time.Duration, answer func() []byte) {
	for {
		c, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // for example, too many files are open
			time.Sleep(10 * time.Millisecond)
			continue
		}
		stop := context.AfterFunc(ctx, func() { c.Close() })
		if unix := c.(*net.UnixConn); SameUser(unix) == nil && unix.SetDeadline(time.Now().Add(timeout)) == nil {
			_, _ = unix.Write(answer()) // fails if the asking process has ended
		}
		stop()
		c.Close()
	}
}

// Ask asks, at the same time, all processes of this user and network namespace
// that listen on a socket with a name for which is returns true. A process of
// another user may also have given such a name. Ask waits until all have
// answered or ctx ends, but for Timeout at most. It fails if ctx has ended
// before. The answers are sorted by process ID.
func Ask(ctx context.Context, is func(name string) bool) ([]Answer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	var mu sync.Mutex
	var all []Answer
	var asked sync.WaitGroup
	names := map[string]bool{}
	for line := range strings.Lines(string(sockets)) {
		name := socket(strings.TrimSuffix(line, "\n"))
		if name == "" || names[name] || !is(name) {
			continue
		}
		names[name] = true // the table has a line with the name for each connection, too
		asked.Go(func() {
			if a, ours := ask(ctx, name); ours {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, a)
			}
		})
	}
	asked.Wait()
	sort.Slice(all, func(i, j int) bool { return all[i].PID < all[j].PID })
	return all, nil
}

// socket returns the name of the socket in a line of /proc/net/unix, or "" if
// it has none. A name follows a space; @ begins those of the abstract
// namespace.
func socket(line string) string {
	at := strings.LastIndexByte(line, ' ')
	if at < 0 {
		return ""
	}
	return line[at+1:]
}

// ask asks the process that listens on the socket. ours is false if the process
// has ended or belongs to another user.
func ask(ctx context.Context, name string) (a Answer, ours bool) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", name)
	if err != nil {
		return a, false // ECONNREFUSED: the process has ended
	}
	defer conn.Close()
	unix := conn.(*net.UnixConn)
	if SameUser(unix) != nil {
		return a, false
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return a, false
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			a.PID = int(cred.Pid)
		}
	})
	defer context.AfterFunc(ctx, func() { unix.SetDeadline(time.Now()) })()
	a.Data, a.Err = io.ReadAll(io.LimitReader(unix, maxAnswer))
	switch {
	case len(a.Data) == 0 && (a.Err == nil || errors.Is(a.Err, syscall.ECONNRESET)):
		return a, false // the process has just ended, or closed its listener before it has accepted
	case errors.Is(a.Err, os.ErrDeadlineExceeded):
		a.Err = errors.New("the process does not answer")
	}
	return a, true
}

// SameUser returns an error unless the process at the other end of c runs as
// the same user as this one.
func SameUser(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *syscall.Ucred
	if cerr := raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); cerr != nil {
		return cerr
	}
	if err == nil && int(cred.Uid) != os.Geteuid() {
		err = fmt.Errorf("the peer process runs as another user (%d): %w", cred.Uid, syscall.ECONNREFUSED)
	}
	return err
}
