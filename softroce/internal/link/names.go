// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A name is the user's: processes of other users may have the same one, and
// neither keep it from this user's processes nor answer for them. So a socket is
// called by the name and a token that its owner chooses at random, which leaves
// the kernel nothing to refuse; others find it in /proc/net/unix, and ask the
// kernel who listens there.
//
// Of the processes that claim a name at the same time, each first listens and then
// looks for others. It gives up if it finds one with a smaller token, or one that
// answers, as only a process that has the name does.

const tokenLen = 16

func newToken() string { return fmt.Sprintf("%0*x", tokenLen, rand.Uint64()) }

// look is what was in /proc/net/unix.
var look struct {
	sync.Mutex
	began time.Time
	all   []string
}

// sockets are the names of all abstract sockets of the network namespace that
// begin with this network's prefix, without it, at some moment of the call. Calls
// that wait for each other have one look for all.
func sockets() ([]string, error) {
	since := time.Now()
	look.Lock()
	defer look.Unlock()
	if look.began.After(since) {
		return look.all, nil
	}
	began := time.Now()
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(string(table)) {
		if _, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "+Prefix()); ok {
			all = append(all, name)
		}
	}
	slices.Sort(all) // connections have the name of their listener
	look.began, look.all = began, slices.Compact(all)
	return look.all, nil
}

// token returns the token of a socket that has a name.
func token(socket, name string) (token string, ok bool) {
	token, ok = strings.CutPrefix(socket, name+"/")
	return token, ok && len(token) == tokenLen
}

// claim takes a name. The error matches syscall.EADDRINUSE if another process of
// the user has it.
func claim(name string) (net.Listener, error) {
	own := newToken()
	listener, err := net.Listen("unix", Prefix()+name+"/"+own)
	if err != nil {
		return nil, err
	}
	others, err := sockets()
	if err != nil {
		listener.Close()
		return nil, err
	}
	for _, socket := range others {
		if other, ok := token(socket, name); ok && other != own && rivals(socket, other < own) {
			listener.Close()
			return nil, fmt.Errorf("another process has the name %s: %w", name, syscall.EADDRINUSE)
		}
	}
	return listener, nil
}

// rivals reports whether a socket is of a process of this user that has the name,
// or is to have it because it is first.
func rivals(socket string, isFirst bool) bool {
	c, err := dialSocket(socket)
	if err != nil {
		return errors.Is(err, syscall.EAGAIN)
	}
	defer c.Close()
	if isFirst || c.SetDeadline(time.Now().Add(helloTimeout)) != nil {
		return true
	}
	_, err = hear(c)
	return err == nil || errors.Is(err, os.ErrDeadlineExceeded) // a process that is stopped keeps what it has
}

// dialSocket connects with a socket of this user. It does not block: the error
// matches syscall.EAGAIN if there is such a socket for which too many wait.
func dialSocket(socket string) (*net.UnixConn, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: Prefix() + socket, Net: "unix"})
	if errors.Is(err, syscall.EAGAIN) {
		err = busy(socket)
	}
	if err != nil {
		return nil, err
	}
	if err := sameUser(c); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// found has the sockets of names that were found.
var found = struct {
	sync.Mutex
	at map[string]foundName
}{at: map[string]foundName{}}

type foundName struct {
	socket string
	since  time.Time
}

// foundLasts is for how long no process is taken to have the names before one
// that was found.
const foundLasts = 100 * time.Millisecond

// dialFirst connects with the process of this user that has the first of some
// names that any has. The error matches syscall.ECONNREFUSED if there is none,
// and syscall.EAGAIN if too many wait for it.
func dialFirst(names ...string) (c *net.UnixConn, err error) {
	for i, name := range names {
		found.Lock()
		f, ok := found.at[name]
		found.Unlock()
		if !ok || i > 0 && time.Since(f.since) > foundLasts {
			continue
		}
		if c, err := dialSocket(f.socket); err == nil || errors.Is(err, syscall.EAGAIN) {
			return c, err
		}
	}
	all, err := sockets()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		for _, socket := range all {
			if _, ok := token(socket, name); !ok {
				continue
			}
			c, err = dialSocket(socket)
			if errors.Is(err, syscall.EAGAIN) {
				return nil, err
			}
			if err == nil {
				found.Lock()
				if len(found.at) >= maxFound {
					clear(found.at)
				}
				found.at[name] = foundName{socket, time.Now()}
				found.Unlock()
				return c, nil
			}
		}
	}
	return nil, fmt.Errorf("no process has the name %s: %w", names[0], syscall.ECONNREFUSED)
}

// maxFound is how many names are remembered.
const maxFound = 1024

// dial connects with the process that has the first of some names that any has, and
// returns its slot. It waits for some time while too many others wait for that.
func (l *Link) dial(names ...string) (*net.UnixConn, int, error) {
	conn, err := dialFirst(names...)
	for until := time.Now().Add(helloTimeout); errors.Is(err, syscall.EAGAIN) && time.Now().Before(until); {
		time.Sleep(time.Millisecond) // the kernel does not tell when
		conn, err = dialFirst(names...)
	}
	if err != nil {
		return nil, 0, err
	}
	slot, err := l.greet(conn)
	if err != nil {
		conn.Close()
		return nil, 0, err
	}
	return conn, slot, nil
}

// Claim takes a name that no other node may have until it is closed. Find finds the node
// by it. The error matches syscall.EADDRINUSE if a node has it.
func (l *Link) Claim(name string) (io.Closer, error) {
	listener, err := claim("name/" + name)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		listener.Close()
		return nil, os.ErrClosed
	}
	// Who has found the name goes away, and is no node that has ended.
	l.helpers.Go(func() { l.accept(listener, func(*net.UnixConn, int, func()) {}) })
	return listener, nil
}

// Find returns the slot of the node that has the first of some names that any has. It may block for some
// time if that node hangs. The error matches syscall.ECONNREFUSED if no node has one of the names.
func (l *Link) Find(names ...string) (slot int, err error) {
	for i := range names {
		names[i] = "name/" + names[i]
	}
	conn, slot, err := l.dial(names...)
	if err != nil {
		return 0, err
	}
	return slot, conn.Close()
}

// Names returns the names that nodes have claimed and that begin with start, without it.
func (l *Link) Names(start string) (rest []string) {
	all, err := sockets()
	if err != nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.users
	l.users = map[string]bool{}
	for _, socket := range all {
		name, ok := strings.CutPrefix(socket, "name/"+start)
		if !ok || len(name) <= tokenLen || name[len(name)-tokenLen-1] != '/' {
			continue
		}
		ours, seen := known[socket]
		if !seen {
			c, err := dialSocket(socket)
			if ours = err == nil || errors.Is(err, syscall.EAGAIN); err == nil {
				c.Close()
			}
		}
		l.users[socket] = ours
		if ours {
			rest = append(rest, name[:len(name)-tokenLen-1])
		}
	}
	return rest
}

// reserve takes the first slot that is free. Slots whose sockets are of other
// users come last, as looking at them takes longer.
func reserve() (slot int, listener net.Listener, err error) {
	all, err := sockets()
	if err != nil {
		return 0, nil, err
	}
	seen := map[string]bool{}
	for _, socket := range all {
		if i := strings.LastIndexByte(socket, '/'); i > 0 {
			seen[socket[:i]] = true
		}
	}
	for _, wanted := range []bool{false, true} {
		for slot := 1; slot < Slots; slot++ {
			name := fmt.Sprintf("node/%d", slot)
			if seen[name] != wanted {
				continue
			}
			listener, err := claim(name)
			if !errors.Is(err, syscall.EADDRINUSE) {
				return slot, listener, err
			}
		}
	}
	return 0, nil, fmt.Errorf("%d processes of this user have the device, which is as many as one network can have (%s gives others another): %w",
		Slots-1, NetworkVariable, syscall.EAGAIN)
}
