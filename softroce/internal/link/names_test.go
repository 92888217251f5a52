// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// squatterEnv has the names that the process of TestOtherUser takes.
const squatterEnv = "LINK_TEST_SQUATTER"

const (
	firstToken = "0000000000000000"
	lastToken  = "ffffffffffffffff"
)

// full is at the end of names for which as many wait as can.
const full = "full"

// listenFull listens at a socket as a process does that is stopped, when as
// many wait for it as can.
func listenFull(socket string) (stop func(), err error) {
	listener, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	open := []int{listener}
	stop = func() {
		for _, fd := range open {
			syscall.Close(fd)
		}
	}
	at := &syscall.SockaddrUnix{Name: Prefix() + socket}
	err = errors.Join(syscall.Bind(listener, at), syscall.Listen(listener, 0))
	for err == nil {
		var fd int
		if fd, err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0); err == nil {
			open = append(open, fd)
			err = syscall.Connect(fd, at)
		}
	}
	if err != syscall.EAGAIN {
		stop()
		return nil, err
	}
	return stop, nil
}

// squat takes all names of nodes, and some more, with and without tokens, until
// its input ends, and answers as a node does.
func squat() {
	for _, name := range strings.Fields(os.Getenv(squatterEnv)) {
		if name, ok := strings.CutSuffix(name, full); ok {
			if _, err := listenFull(name); err != nil {
				fmt.Println(err)
				return
			}
			continue
		}
		listener, err := net.Listen("unix", Prefix()+name)
		if err != nil {
			fmt.Println(err)
			return
		}
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write(append([]byte(magic), 77))
			}
		}()
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// asOtherUser starts this test in a process of another user.
func asOtherUser(t *testing.T, names []string) {
	t.Helper()
	if os.Getuid() != 0 {
		require.Empty(t, os.Getenv("RDMA_VM"))
		t.Skip("needs root, to have another user")
	}
	dir, err := os.MkdirTemp("", "verbena")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	binary, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	path := filepath.Join(dir, "squatter")
	require.NoError(t, os.WriteFile(path, binary, 0o755))
	cmd := exec.Command(path, "-test.run", "^TestOtherUser$")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), squatterEnv+"="+strings.Join(names, " "))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
}

// TestOtherUser has another user take all names that there are, in the forms
// that this user's processes look for.
func TestOtherUser(t *testing.T) {
	if os.Getenv(squatterEnv) != "" {
		squat()
		return
	}
	var names []string
	for slot := 1; slot < Slots; slot++ {
		node := fmt.Sprintf("node/%d", slot)
		names = append(names, node, node+"/"+firstToken, node+"/"+lastToken)
	}
	for _, name := range []string{"name/port/1", "name/port/2", "name/group/x/77"} {
		names = append(names, name, name+"/"+firstToken, name+"/"+lastToken)
	}
	for _, name := range []string{"name/port/3", "name/group/y/77"} {
		names = append(names, name+"/"+firstToken+full, name+"/"+lastToken+full)
	}
	asOtherUser(t, names)

	a, _ := join(t)
	b, got := join(t)
	require.NotEqual(t, a.Slot(), b.Slot())
	a.send(b.Slot(), []byte("frame"))
	got.until(t, "the frame arrives", func() bool { return len(got.frames[a.Slot()]) == 1 })

	claimed, err := a.Claim("port/1")
	require.NoError(t, err)
	_, err = b.Claim("port/1")
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	slot, err := b.Find("port/2", "port/1")
	require.NoError(t, err)
	require.Equal(t, a.Slot(), slot)
	require.NoError(t, claimed.Close())
	_, err = b.Find("port/2", "port/1")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)

	taken, err := a.Claim("port/3")
	require.NoError(t, err)
	slot, err = b.Find("port/3")
	require.NoError(t, err)
	require.Equal(t, a.Slot(), slot)
	require.NoError(t, taken.Close())
	_, err = b.Find("port/3")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)

	require.Empty(t, a.Names("group/y/"))
	require.Empty(t, a.Names("group/x/"))
	member, err := b.Claim("group/x/2")
	require.NoError(t, err)
	require.Equal(t, []string{"2"}, a.Names("group/x/"))
	require.NoError(t, member.Close())
}

// Of many that claim a name at the same time one gets it, whether it is free or
// was given back just now.
func TestClaimedAtOnce(t *testing.T) {
	a, _ := join(t)
	for round := range 30 {
		var won atomic.Int32
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				listener, err := a.Claim("port/race")
				if err != nil {
					require.ErrorIs(t, err, syscall.EADDRINUSE)
					return
				}
				won.Add(1)
				defer listener.Close()
				if slot, err := a.Find("port/race"); err == nil { // else a loser was found
					require.Equal(t, a.Slot(), slot)
				}
				_, err = a.Claim("port/race")
				require.ErrorIs(t, err, syscall.EADDRINUSE)
			})
		}
		all.Wait()
		require.GreaterOrEqual(t, won.Load(), int32(1), "round %d", round)
	}
}

// At no moment do two have a name.
func TestOneAtATime(t *testing.T) {
	a, _ := join(t)
	var holders, most, times atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				listener, err := a.Claim("port/turns")
				if err != nil {
					continue
				}
				times.Add(1)
				if n := holders.Add(1); n > most.Load() {
					most.Store(n)
				}
				holders.Add(-1)
				listener.Close()
			}
		})
	}
	all.Wait()
	require.Equal(t, int32(1), most.Load())
	require.Positive(t, times.Load())
}

// A process that is stopped before it has answered keeps the name that it has.
func TestSilentHolder(t *testing.T) {
	a, _ := join(t)
	for _, token := range []string{firstToken, lastToken} {
		silent, err := net.Listen("unix", Prefix()+"name/port/silent/"+token)
		require.NoError(t, err)
		_, err = a.Claim("port/silent")
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.NoError(t, silent.Close())
	}
}

// So does one for which so many wait, such as those of another user, that the
// system takes no more. It is not taken to have ended.
func TestFloodedHolder(t *testing.T) {
	a, got := join(t)
	for _, token := range []string{firstToken, lastToken} {
		stop, err := listenFull("name/port/flooded/" + token)
		require.NoError(t, err)
		claimed, err := a.Claim("port/flooded")
		if err == nil {
			claimed.Close() // or the link cannot end
		}
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		_, err = a.Find("port/flooded")
		require.ErrorIs(t, err, syscall.EAGAIN)
		require.Equal(t, []string{"flooded"}, a.Names("port/"))
		stop()
		_, err = a.Find("port/flooded")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
	const flooded, gone = 200, 201
	stop, err := listenFull(fmt.Sprintf("node/%d/%s", flooded, firstToken))
	require.NoError(t, err)
	defer stop()
	a.send(flooded, []byte("frame"))
	a.send(gone, []byte("frame"))
	got.until(t, "the end is told", func() bool { return got.gone[gone] > 0 })
	require.Zero(t, got.gone[flooded])
}

// The first of two names is found, also when the other was found before.
func TestFirstName(t *testing.T) {
	a, _ := join(t)
	b, _ := join(t)
	names := func() []string { return []string{"port/one address", "port/all addresses"} }
	all, err := a.Claim(names()[1])
	require.NoError(t, err)
	slot, err := a.Find(names()...)
	require.NoError(t, err)
	require.Equal(t, a.Slot(), slot)
	one, err := b.Claim(names()[0])
	require.NoError(t, err)
	until(t, "the name is the other node's", func() bool {
		slot, err := a.Find(names()...)
		require.NoError(t, err)
		return slot == b.Slot()
	})
	require.NoError(t, one.Close())
	slot, err = a.Find(names()...)
	require.NoError(t, err)
	require.Equal(t, a.Slot(), slot)
	require.NoError(t, all.Close())
}

// As many nodes as there are slots, and one more.
func TestAllSlots(t *testing.T) {
	var all []*Link
	defer func() {
		for _, l := range all {
			l.Close()
		}
	}()
	for range Slots - 1 {
		l, err := Reserve()
		require.NoError(t, err)
		all = append(all, l)
	}
	_, err := Reserve()
	require.ErrorIs(t, err, syscall.EAGAIN)
	require.ErrorContains(t, err, "254 processes of this user have the device")
	require.ErrorContains(t, err, NetworkVariable)
	require.NoError(t, all[100].Close())
	l, err := Reserve()
	require.NoError(t, err)
	require.Equal(t, all[100].Slot(), l.Slot())
	all[100] = l
}
