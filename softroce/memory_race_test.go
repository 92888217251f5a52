// SPDX-License-Identifier: Apache-2.0

//go:build race && linux && cgo && (amd64 || arm64 || ppc64le || s390x)

package softroce_test

import (
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/softroce"
)

func init() { hostPrograms["memory"] = memoryProgram }

// mistakes are programs that use memory while it belongs to the device. Each
// has the functions that the report of the race detector must name: that of the
// device's access, and the one that has posted the request.
var mistakes = map[string]struct {
	access, posted string
	run            func(a, b *user)
}{
	"write while a send reads": {"DeviceSends", "(*user).send", func(a, b *user) {
		b.receive(0, 64)
		a.send(1, ibverbs.SendSignaled, 0, 64)
		a.memory[5] = 1
	}},
	"write to the last byte of a long send": {"DeviceSends", "(*user).send", func(a, b *user) {
		b.receive(0, size)
		a.send(1, ibverbs.SendSignaled, 0, size)
		a.memory[size-1] = 1
	}},
	"write to the second segment": {"DeviceSends", "(*user).posts", func(a, b *user) {
		b.receive(0, 64)
		a.posts(func(s *ibverbs.SendBatch) error {
			return s.Send(1, ibverbs.SendSignaled, a.mr.Sub(0, 8), a.mr.Sub(100, 8))
		})
		a.memory[107] = 1
	}},
	"write after the completion of an earlier send": {"DeviceSends", "(*user).send", func(a, b *user) {
		b.receive(0, 64)
		b.receive(64, 64)
		a.send(1, ibverbs.SendSignaled, 0, 64)
		a.send(2, ibverbs.SendSignaled, 64, 64)
		a.sent(1)
		a.memory[64] = 1
	}},
	"write after an unsignaled send": {"DeviceSends", "(*user).send", func(a, b *user) {
		b.receive(0, 64)
		a.send(1, 0, 0, 64)
		b.received(1)
		a.memory[0] = 1
	}},
	"write while an RDMA write reads": {"DeviceSends", "(*user).posts", func(a, b *user) {
		a.writes(1, 64, b, 0, 64)
		a.memory[64] = 1
	}},
	"write to a posted receive": {"DeviceReceives", "(*user).receive", func(a, b *user) {
		b.receive(0, 64)
		b.memory[63] = 1
	}},
	"read before the message": {"DeviceReceives", "(*user).receive", func(a, b *user) {
		b.receive(0, 64)
		a.send(1, ibverbs.SendSignaled, 0, 8)
		a.sent(1) // the peer has it, but this end does not know
		_ = use(b.memory[0])
	}},
	"read of the next receive": {"DeviceReceives", "(*user).receive", func(a, b *user) {
		b.receive(0, 64)
		b.receive(64, 64)
		a.send(1, ibverbs.SendSignaled, 0, 8)
		b.received(1)
		_ = use(b.memory[64])
	}},
	"read of a shared receive": {"DeviceReceives", "(*user).share", func(a, b *user) {
		b.share(a, 3)
		a.send(1, ibverbs.SendSignaled, 0, 8)
		b.received(1)
		_ = use(b.memory[64*2])
	}},
	"read of a receive that a peer names": {"DeviceReceives", "(*user).shareXRC", func(a, b *user) {
		b.shareXRC(a, 3)
		a.send(1, ibverbs.SendSignaled, 0, 8)
		b.received(1)
		_ = use(b.memory[64*2])
	}},
	"read before the result of an RDMA read": {"DeviceGetsReply", "(*user).posts", func(a, b *user) {
		a.reads(1, 0, b, 64, 8)
		_ = use(a.memory[7])
	}},
	"read before the result of an atomic": {"DeviceGetsReply", "(*user).posts", func(a, b *user) {
		a.adds(1, 0, b, 64)
		_ = use(a.memory[0])
	}},
	"read of what a peer writes": {"PeerWrites", "(*user).posts", func(a, b *user) {
		a.memory[size-1] = 1
		a.writes(1, 0, b, 0, size)
		b.changed(size - 1)
		_ = use(b.memory[100])
		a.sent(1)
	}},
	"read of the last bytes that a peer writes": {"PeerWritesLast", "(*user).posts", func(a, b *user) {
		a.memory[63] = 1
		a.writes(1, 0, b, 0, 64)
		b.changed(63)
		_ = use(b.memory[63])
		a.sent(1)
	}},
	"write to what a peer reads": {"PeerReads", "(*user).posts", func(a, b *user) {
		b.memory[64] = 1
		a.reads(1, 0, b, 64, 8)
		a.changed(0)
		b.memory[64] = 2
		a.sent(1)
	}},
	"read of what a peer changes by atomics": {"PeerChanges", "(*user).posts", func(a, b *user) {
		a.adds(1, 0, b, 64)
		b.changed(64)
		_ = use(b.memory[64])
		a.sent(1)
	}},
	"read of what a peer writes atomically": {"PeerChanges", "(*user).posts", func(first, _ *user) {
		a, b := pairOfUsers(first.device, ibverbs.QPTypeRC, libibverbs.IBV_QP_EX_WITH_ATOMIC_WRITE)
		a.stores(1, b, 64)
		b.changed(64)
		_ = use(b.memory[64])
		a.sent(1)
	}},
	"message before the RDMA write": {"PeerWrites", "(*user).posts", func(a, b *user) {
		b.receive(0, 8)
		a.send(1, ibverbs.SendSignaled, 0, 8)
		b.received(1)
		a.memory[8] = 1
		a.writes(2, 0, b, 1024, 1024)
		b.changed(1024 + 8)
		_ = use(b.memory[1024])
		a.sent(1)
		a.sent(2)
	}},
	"read before the immediate data": {"PeerWrites", "(*user).posts", func(a, b *user) {
		b.receive(0, 8)
		a.memory[0] = 1
		a.posts(func(s *ibverbs.SendBatch) error {
			return s.WriteImm(1, b.mr.Remote().Sub(1024, 1024), 7, ibverbs.SendSignaled, a.mr.Sub(0, 1024))
		})
		b.changed(1024)
		_ = use(b.memory[1024])
		a.sent(1)
	}},
	"read of what a peer writes through a window": {"PeerWrites", "(*user).posts", func(a, b *user) {
		remote := b.window(ibverbs.MWType1, 1024, 1024).Remote()
		a.memory[0] = 1
		a.posts(func(s *ibverbs.SendBatch) error {
			return s.Write(1, remote, ibverbs.SendSignaled, a.mr.Sub(0, 1024))
		})
		b.changed(1024)
		_ = use(b.memory[1024])
		a.sent(1)
	}},
	"after an error, before the flushed completion": {"DeviceReceives", "(*user).receive", func(a, b *user) {
		b.receive(0, 64)
		must(b.qp.SetError())
		time.Sleep(settle)
		b.memory[0] = 1
	}},
	"another goroutine polls": {"DeviceReceives", "(*user).receive", func(a, b *user) {
		b.receive(0, 64)
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.send(1, ibverbs.SendSignaled, 0, 8)
			b.received(1)
		}()
		time.Sleep(2 * settle)
		_ = use(b.memory[0]) // does not wait for the goroutine
		<-done
	}},
	"datagram": {"DeviceSends", "(*user).posts", func(first, _ *user) {
		a, b := datagramUsers(first.device)
		to, err := a.pd.CreateDestination(a.addr, b.addr)
		must(err)
		a.posts(func(s *ibverbs.SendBatch) error { return s.SendTo(1, to, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
		a.memory[0] = 1
	}},
	"unreliable RDMA write": {"PeerWrites", "(*user).posts", func(first, _ *user) {
		a, b := pairOfUsers(first.device, ibverbs.QPTypeUC, 0)
		a.memory[0] = 1
		a.writes(1, 0, b, 1024, 1024)
		b.changed(1024)
		a.sent(1)
		_ = use(b.memory[1024])
	}},
	"read of the next receive after many polls": {"DeviceReceives", "(*user).receive", func(a, b *user) {
		b.receive(0, 64)
		b.receive(64, 64)
		a.send(1, ibverbs.SendSignaled, 0, 8)
		b.received(1)
		b.pollLong()
		_ = use(b.memory[64])
	}},
	"write to a long send after many polls": {"DeviceSends", "(*user).send", func(a, b *user) {
		a.send(1, ibverbs.SendSignaled, 0, size)
		a.pollLong()
		a.memory[0] = 1
	}},
	"read of what a peer writes after many polls": {"PeerWrites", "(*user).posts", func(a, b *user) {
		a.writes(1, 0, b, 0, size)
		b.pollLong()
		_ = use(b.memory[100])
		a.sent(1)
	}},
	"with the functions ibv_wr": {"DeviceSends", "(*user).send", func(first, _ *user) {
		a, b := pairOfUsers(first.device, ibverbs.QPTypeRC, libibverbs.IBV_QP_EX_WITH_SEND)
		b.receive(0, 64)
		a.send(1, ibverbs.SendSignaled, 0, 64)
		a.memory[5] = 1
	}},
}

// usesAfterClose are programs that use the memory of PD.Alloc after they have
// closed its region.
var usesAfterClose = map[string]func(a *user){
	"read": func(a *user) {
		must(a.mr.Close())
		_ = use(a.memory[size-1])
	},
	"write": func(a *user) {
		must(a.mr.Close())
		a.memory[0] = 1
	},
	"another goroutine": func(a *user) {
		running, done := make(chan bool), make(chan bool)
		go func() {
			<-running
			_ = use(a.memory[100])
			close(done)
		}()
		close(running)
		must(a.mr.Close()) // does not wait for the goroutine
		<-done
	},
}

// regions are kinds of memory that the race detector knows.
var regions = map[string]func(pd *ibverbs.PD) *ibverbs.MR{
	"Register": memoryOf,
	"Alloc":    func(pd *ibverbs.PD) *ibverbs.MR { return result(pd.Alloc(size, allAccess)) },
}

// changed waits until the device has changed a byte, which was 0. It calls no
// C: for the race detector, what the program has done before a call happens
// before what the device does later.
//
//go:norace
func (u *user) changed(at int) {
	for until := time.Now().Add(time.Minute); u.memory[at] == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			panic("no change within a minute")
		}
	}
}

// pollLong polls for nothing as often as a program does that waits for long.
func (u *user) pollLong() {
	for range 50_000 {
		u.poll()
	}
}

// memoryProgram is the program that makes a mistake. Its arguments are the kind
// of memory, and the mistake.
func memoryProgram(args []string, _, stderr io.Writer) int {
	must(softroce.Use(softroce.Config{}))
	memoryOf = regions[args[0]]
	if f := usesAfterClose[args[1]]; f != nil {
		run(func(a, _ *user) { f(a) })
		return 0
	}
	run(mistakes[args[1]].run)
	for _, mr := range created.mrs { // which waits until the race detector knows of all posted requests
		if err := mr.Close(); err != nil && !errors.Is(err, syscall.EBUSY) { // as a window that is bound to the region is
			panic(err)
		}
	}
	return 0
}

// race runs memoryProgram, and returns the report of the race detector.
func race(t *testing.T, memory, mistake string) string {
	cmd := process.Command(t, "memory", memory, mistake)
	cmd.Env = append(cmd.Env, "GORACE=halt_on_error=0 atexit_sleep_ms=0")
	p := process.Run(t, cmd)
	require.Equal(t, 66, p.Wait(), p.Output())
	report := p.Stderr()
	require.Equal(t, 1, strings.Count(report, "WARNING: DATA RACE"), report)
	require.NotContains(t, report, "newUser()", "it has returned")
	return report
}

func TestMistakesAreReported(t *testing.T) {
	for memory := range regions {
		for name, m := range mistakes {
			t.Run(memory+"/"+name, func(t *testing.T) {
				t.Parallel()
				report := race(t, memory, name)
				require.Contains(t, report, "detector."+m.access+"()")
				require.Contains(t, report, "softroce_test."+m.posted)
			})
		}
	}
}

func TestUsesAfterCloseAreReported(t *testing.T) {
	for name := range usesAfterClose {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := race(t, "Alloc", name)
			require.Contains(t, report, "mem.Freed()")
			require.Contains(t, report, "ibverbs.(*MR).Close()")
		})
	}
}

func TestRightProgramsAreNotBlamed(t *testing.T) {
	defer func(before func(*ibverbs.PD) *ibverbs.MR) { memoryOf = before }(memoryOf)
	for memory, of := range regions {
		memoryOf = of
		for name, f := range rightPrograms {
			t.Run(memory+"/"+name, func(t *testing.T) {
				if memory == "Alloc" && name == "closed region" {
					t.Skip("memory of PD.Alloc ends with its region")
				}
				run(f)
				for _, qp := range created.qps { // so that none sends during other tests
					must(qp.Close())
				}
				created.qps = nil
			})
		}
	}
}
