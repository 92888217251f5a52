// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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

// Publish makes this process answer calls of Ask by processes of the same user,
// until the result is closed. The function answer returns the answer. The
// process need not be a node.
func Publish(answer func() []byte) (io.Closer, error) {
	listener, err := net.Listen("unix", fmt.Sprintf("%sstat/%016x", Prefix(), rand.Uint64()))
	if err != nil {
		return nil, err
	}
	go answerAll(listener, answer)
	return listener, nil
}

// answerAll answers the processes that call Ask. Programs pass the name of this
// function to goleak, so it must not change (see docs/softroce.md).
func answerAll(listener net.Listener, answer func() []byte) {
	for {
		c, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // for example, too many files are open
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if unix := c.(*net.UnixConn); sameUser(unix) == nil && unix.SetDeadline(time.Now().Add(helloTimeout)) == nil {
			_, _ = unix.Write(answer()) // fails if the asking process has ended
		}
		c.Close()
	}
}

// Answer is the answer of a process.
type Answer struct {
	PID  int    // process ID; 0: the process is in another PID namespace
	Data []byte // result of the function that the process has passed to Publish
	Err  error  // reason why there is no answer
}

// published returns the name of the socket in a line of /proc/net/unix. ok is
// false if it is not a name that Publish gives to sockets, in this or any other
// network. A process of another user may also have given such a name.
func published(line string) (name string, ok bool) {
	name = line[strings.LastIndexByte(line, ' ')+1:]
	rest, ok := strings.CutPrefix(name, "@verbena-softroce")
	if !ok || len(name) == len(line) { // the line has no name; a name follows a space
		return "", false
	}
	network, number, ok := strings.Cut(rest, "/stat/")
	if network != "" && !(network[0] == '-' && isNumber(network[1:])) {
		return "", false
	}
	return name, ok && isNumber(number)
}

// isNumber reports whether text is a 64-bit number in hexadecimal.
func isNumber(text string) bool {
	return len(text) == 16 && strings.Trim(text, "0123456789abcdef") == ""
}

// Ask asks all processes of this user and network namespace at once. If
// NetworkVariable is set, it asks only those of the same network. It waits
// until all have answered or ctx ends, but for two seconds at most. The answers
// are sorted by process ID.
func Ask(ctx context.Context) ([]Answer, error) {
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	var mu sync.Mutex
	var all []Answer
	var asked sync.WaitGroup
	names := map[string]bool{}
	for line := range strings.Lines(string(sockets)) {
		name, ok := published(strings.TrimSuffix(line, "\n"))
		if !ok || names[name] || os.Getenv(NetworkVariable) != "" && !strings.HasPrefix(name, Prefix()) {
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
	if sameUser(unix) != nil {
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
	case len(a.Data) == 0 && a.Err == nil:
		return a, false // the process has just ended
	case errors.Is(a.Err, os.ErrDeadlineExceeded):
		a.Err = errors.New("the process does not answer")
	}
	return a, true
}
