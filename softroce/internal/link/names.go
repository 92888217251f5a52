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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/internal/inquiry"
)

// A name belongs to one user: processes of different users may have the same
// name, without an effect on each other. So the socket of a name has the name
// and a random token, which the kernel cannot find in use. Other processes find
// the socket in /proc/net/unix, and ask the kernel which user listens on it.
//
// If several processes claim a name at the same time, each first listens and
// then looks for the others. It gives up if one of them has a smaller token, or
// answers, as only the process that has the name does.

const tokenLen = 16 // in characters

// newToken returns a random token, with which the name of a socket ends.
func newToken() string { return fmt.Sprintf("%0*x", tokenLen, rand.Uint64()) }

// socketTable caches the content of /proc/net/unix.
var socketTable struct {
	sync.Mutex
	began time.Time
	all   []string
}

// sockets returns the names of all listening sockets of this network, without
// the prefix, as they were at some time during the call. Concurrent calls may
// share one reading of /proc/net/unix.
func sockets() ([]string, error) {
	since := time.Now()
	socketTable.Lock()
	defer socketTable.Unlock()
	if socketTable.began.After(since) {
		return socketTable.all, nil
	}
	began := time.Now()
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(string(table)) {
		if name, ok := listening(line); ok {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	socketTable.began, socketTable.all = began, all
	return socketTable.all, nil
}

// listening returns the name in a line of /proc/net/unix, without the prefix,
// if it is that of a listening socket of this network. A connection has the
// name of the listening socket that accepted it, and may outlive that socket.
func listening(line string) (name string, ok bool) {
	const acceptsConnections = 1 << 16 // __SO_ACCEPTCON of the kernel
	fields, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "+Prefix())
	columns := strings.Fields(fields) // address, references, protocol, flags, type, state, inode
	if !ok || len(columns) < 4 {
		return "", false
	}
	flags, err := strconv.ParseUint(columns[3], 16, 64)
	return name, err == nil && flags&acceptsConnections != 0
}

// token returns the random token at the end of a socket's name. It returns
// false if the socket does not stand for the given name.
func token(socket, name string) (token string, ok bool) {
	token, ok = strings.CutPrefix(socket, name+"/")
	return token, ok && len(token) == tokenLen
}

// claim claims a name. It fails with an error matching syscall.EADDRINUSE if
// another process of the user has claimed it.
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
		if other, ok := token(socket, name); ok && other != own && preventsClaim(socket, other < own) {
			listener.Close()
			return nil, fmt.Errorf("another process has claimed the name %s: %w", name, syscall.EADDRINUSE)
		}
	}
	return listener, nil
}

// preventsClaim reports whether socket, which another process has opened for
// the same name, prevents this process from taking the name. It does if the
// other process belongs to this user and has taken the name. It also does if
// the other process is about to take the name, and isFirst is true: the smaller
// token decides.
func preventsClaim(socket string, isFirst bool) bool {
	c, err := dialSocket(socket)
	if err != nil {
		return errors.Is(err, syscall.EAGAIN)
	}
	defer c.Close()
	if isFirst || c.SetDeadline(time.Now().Add(helloTimeout)) != nil {
		return true
	}
	_, err = readSlot(c)
	return err == nil || errors.Is(err, os.ErrDeadlineExceeded) // a stopped process keeps its name
}

// dialSocket connects to a socket of this user. It does not block: it fails
// with an error matching syscall.EAGAIN if too many connections wait to be
// accepted.
func dialSocket(socket string) (*net.UnixConn, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: Prefix() + socket, Net: "unix"})
	if errors.Is(err, syscall.EAGAIN) {
		err = busy(socket)
	}
	if err != nil {
		return nil, err
	}
	if err := inquiry.SameUser(c); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// found caches, for each name, the socket that was found.
var found = struct {
	sync.Mutex
	at map[string]foundName
}{at: map[string]foundName{}}

// foundName is the socket that stands for a name, and the time at which it was
// found.
type foundName struct {
	socket string
	since  time.Time
}

// foundLasts is the time for which dialFirst uses the cached socket of a name
// other than the first. After that time, a process may have claimed one of the
// earlier names.
const foundLasts = 100 * time.Millisecond

// dialFirst looks for the first of the names that any process of this user has
// claimed, and connects to that process. It fails with an error matching
// syscall.ECONNREFUSED if none of the names is claimed, and with one matching
// syscall.EAGAIN if too many connections wait to be accepted.
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
	return nil, fmt.Errorf("no process has claimed the name %s: %w", names[0], syscall.ECONNREFUSED)
}

// maxFound limits the number of cached names.
const maxFound = 1024

// dial connects as dialFirst does, and returns the slot of the process. While
// too many connections wait to be accepted, it tries again, for helloTimeout at
// most.
func (l *Link) dial(names ...string) (*net.UnixConn, int, error) {
	conn, err := dialFirst(names...)
	for until := time.Now().Add(helloTimeout); errors.Is(err, syscall.EAGAIN) && time.Now().Before(until); {
		time.Sleep(time.Millisecond) // the kernel does not report when a connection is accepted
		conn, err = dialFirst(names...)
	}
	if err != nil {
		return nil, 0, err
	}
	slot, err := l.exchangeSlots(conn, helloTimeout)
	if err != nil {
		conn.Close()
		return nil, 0, err
	}
	return conn, slot, nil
}

// Claim claims a name for this node until the result is closed. Find finds the
// node by the name. Claim fails with an error matching syscall.EADDRINUSE if
// another node has claimed the name.
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
	// A process that has found the name closes its connection. That does not
	// mean that a node has ended, so there is nothing to serve.
	l.helpers.Go(func() { l.accept(listener, func(*net.UnixConn, int, func()) {}) })
	return listener, nil
}

// Find looks for the first of the names that any node has claimed, and returns
// the slot of that node. It may block for some time if the node does not
// answer. It fails with an error matching syscall.ECONNREFUSED if none of the
// names is claimed.
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

// Names looks for the claimed names that begin with start. It returns what
// follows start in each.
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

// reserve claims the first free slot. It tries those slots last whose names any
// process seems to have, as checking them takes longer.
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
	return 0, nil, fmt.Errorf("%d processes of this user have the device, the limit for one network; set %s to use another network: %w",
		Slots-1, NetworkVariable, syscall.EAGAIN)
}
