// SPDX-License-Identifier: Apache-2.0

//go:build !race && linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package softroce_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/counter"
	"github.com/verbena-go/verbena/ibverbs/tag"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/softroce"
)

func init() { hostPrograms["checked"] = checkedProgram }

// memories are kinds of memory. Peers have access to that of some.
var memories = map[string]func(pd *ibverbs.PD) *ibverbs.MR{
	"open": memoryOf,
	"heap": func(pd *ibverbs.PD) *ibverbs.MR {
		return result(pd.Register(make([]byte, size), ibverbs.AccessLocalWrite))
	},
	"domain": func(pd *ibverbs.PD) *ibverbs.MR { return result(pd.Alloc(size, ibverbs.AccessLocalWrite)) },
	"mapped": func(pd *ibverbs.PD) *ibverbs.MR {
		return result(pd.Register(result(syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE,
			syscall.MAP_SHARED|syscall.MAP_ANON)), ibverbs.AccessLocalWrite))
	},
	"odd": func(pd *ibverbs.PD) *ibverbs.MR {
		return result(pd.Register(make([]byte, size+1)[1:], ibverbs.AccessLocalWrite))
	},
}

// peerMemory returns memory that peers have access to.
func (u *user) peerMemory() *ibverbs.MR { return result(u.pd.Register(make([]byte, size), allAccess)) }

// checkedMistakes are programs that write to memory which belongs to the
// device. Each has the operation and the function that posted it.
var checkedMistakes = map[string]struct {
	operation, posted string
	run               func(a, b *user)
}{
	"write while a send reads": {"send", "(*user).send", func(a, b *user) {
		b.receive(0, 64)
		a.send(1, ibverbs.SendSignaled, 0, 64)
		a.memory[5]++
		a.sent(1)
	}},
	"write after the peer has the message": {"send", "(*user).send", func(a, b *user) {
		b.receive(0, 64)
		a.send(1, ibverbs.SendSignaled, 0, 64)
		b.received(1)
		a.memory[5]++
		a.sent(1)
	}},
	"write to the last byte of a long send": {"send", "(*user).send", func(a, b *user) {
		b.receive(0, size)
		a.send(1, ibverbs.SendSignaled, 0, size)
		a.memory[size-1]++
		a.sent(1)
	}},
	"write to the second segment": {"send", "(*user).posts", func(a, b *user) {
		b.receive(0, 64)
		a.posts(func(s *ibverbs.SendBatch) error {
			return s.Send(1, ibverbs.SendSignaled, a.mr.Sub(0, 8), a.mr.Sub(100, 8))
		})
		a.memory[107]++
		a.sent(1)
	}},
	"write after the completion of an earlier send": {"send", "(*user).send", func(a, b *user) {
		b.receive(0, 64)
		b.receive(64, 64)
		a.send(1, ibverbs.SendSignaled, 0, 64)
		a.send(2, ibverbs.SendSignaled, 64, 64)
		a.sent(1)
		a.memory[64]++
		a.sent(2)
	}},
	"write after an unsignaled send": {"send", "(*user).send", func(a, b *user) {
		b.receive(0, 64)
		a.send(1, 0, 0, 64)
		b.received(1)
		a.memory[0]++
		b.receive(0, 64)
		a.posts(func(s *ibverbs.SendBatch) error {
			return s.Send(2, ibverbs.SendSignaled|ibverbs.SendInline, a.mr.Sub(64, 8))
		})
		a.sent(2)
	}},
	"write while an RDMA write reads": {"RDMA write", "(*user).posts", func(a, b *user) {
		to := b.peerMemory().Remote().Sub(0, 64)
		a.posts(func(s *ibverbs.SendBatch) error { return s.Write(1, to, ibverbs.SendSignaled, a.mr.Sub(64, 64)) })
		a.memory[64]++
		a.sent(1)
	}},
	"write while an RDMA write with immediate data reads": {"RDMA write", "(*user).posts", func(a, b *user) {
		b.receive(0, 8)
		to := b.peerMemory().Remote().Sub(0, 64)
		a.posts(func(s *ibverbs.SendBatch) error { return s.WriteImm(1, to, 7, ibverbs.SendSignaled, a.mr.Sub(64, 64)) })
		a.memory[127]++
		a.sent(1)
	}},
	"write after a send has failed": {"send", "(*user).send", func(a, b *user) {
		must(a.qp.SetError())
		a.send(1, ibverbs.SendSignaled, 0, 64)
		a.memory[0]++
		a.flushed(a.sendCQ)
	}},
	"datagram": {"send", "(*user).posts", func(first, _ *user) {
		a, b := datagramUsers(first.device)
		to := result(a.pd.CreateDestination(a.addr, b.addr))
		a.posts(func(s *ibverbs.SendBatch) error { return s.SendTo(1, to, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
		a.memory[0]++
		a.sent(1)
	}},
	"unreliable send": {"send", "(*user).send", func(first, _ *user) {
		a, b := pairOfUsers(first.device, ibverbs.QPTypeUC, 0)
		b.receive(0, 64)
		a.send(1, ibverbs.SendSignaled, 0, 64)
		a.memory[0]++
		a.sent(1)
	}},
	"with the functions ibv_wr": {"send", "(*user).send", func(first, _ *user) {
		a, b := pairOfUsers(first.device, ibverbs.QPTypeRC, libibverbs.IBV_QP_EX_WITH_SEND)
		b.receive(0, 64)
		a.send(1, ibverbs.SendSignaled, 0, 64)
		a.memory[5]++
		a.sent(1)
	}},
	"write to a posted receive": {"receive", "(*user).receive", func(a, b *user) {
		b.receive(0, 64)
		b.memory[13] = 1
		a.send(1, ibverbs.SendSignaled, 0, 64)
		b.received(1)
	}},
	"write to a receive that is flushed": {"receive", "(*user).receive", func(a, b *user) {
		b.receive(0, 64)
		b.memory[13] = 1
		must(b.qp.SetError())
		b.flushed(b.recvCQ)
	}},
	"write before the result of an RDMA read": {"RDMA read", "(*user).posts", func(a, b *user) {
		from := b.peerMemory().Remote().Sub(0, 64)
		must(a.qp.ToSQD(false))
		a.posts(func(s *ibverbs.SendBatch) error { return s.Read(1, from, ibverbs.SendSignaled, a.mr.Sub(0, 64)) })
		a.memory[8]++
		must(a.qp.Resume())
		a.sent(1)
	}},
	"write before the result of an atomic operation": {"atomic operation", "(*user).posts", func(a, b *user) {
		word := b.peerMemory().Remote().Sub(0, 8)
		must(a.qp.ToSQD(false))
		a.posts(func(s *ibverbs.SendBatch) error {
			return s.FetchAdd(1, word, 1, ibverbs.SendSignaled, a.mr.Sub(0, 8))
		})
		a.memory[0]++
		must(a.qp.Resume())
		a.sent(1)
	}},
	"write behind a message": {"receive", "(*user).receive", func(a, b *user) {
		b.receive(0, 64)
		b.memory[32] = 1
		a.send(1, ibverbs.SendSignaled, 0, 8)
		b.received(1)
	}},
	"write to a receive for an RDMA write": {"receive", "(*user).receive", func(a, b *user) {
		b.receive(0, 64)
		b.memory[8] = 1
		to := b.peerMemory().Remote().Sub(0, 64)
		a.posts(func(s *ibverbs.SendBatch) error { return s.WriteImm(1, to, 7, ibverbs.SendSignaled, a.mr.Sub(64, 64)) })
		b.received(1)
	}},
	"write to the next receive": {"receive", "(*user).receive", func(a, b *user) {
		b.receive(0, 64)
		b.receive(64, 64)
		a.send(1, ibverbs.SendSignaled, 0, 8)
		b.received(1)
		b.memory[64+40] = 1
		a.send(1, ibverbs.SendSignaled, 0, 8)
		b.received(1)
	}},
	"write to a shared receive": {"receive", "(*user).share", func(a, b *user) {
		b.share(a, 3)
		b.memory[32] = 1
		a.send(1, ibverbs.SendSignaled, 0, 8)
		b.received(1)
	}},
	"write to a receive that a peer names": {"receive", "(*user).shareXRC", func(a, b *user) {
		b.shareXRC(a, 3)
		b.memory[32] = 1
		a.send(1, ibverbs.SendSignaled, 0, 8)
		b.received(1)
	}},
	"write to a receive after a dropped message": {"receive", "(*user).receive", func(first, _ *user) {
		a, b := pairOfUsers(first.device, ibverbs.QPTypeUC, 0)
		b.receive(0, 5000)
		a.send(1, ibverbs.SendSignaled, 0, size) // too long
		a.send(2, ibverbs.SendSignaled, 0, 8)
		b.received(1)
		b.receive(0, 64)
		b.memory[32] = 1
		a.send(3, ibverbs.SendSignaled, 0, 8)
		b.received(1)
	}},
	"write to a receive of a datagram": {"receive", "(*user).receive", func(first, _ *user) {
		a, b := datagramUsers(first.device)
		to := result(a.pd.CreateDestination(a.addr, b.addr))
		b.receive(0, 80)
		b.memory[48] = 1
		a.posts(func(s *ibverbs.SendBatch) error { return s.SendTo(1, to, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
		b.received(1)
	}},
}

// earlyReads are programs that read memory before its message is there. They
// return what they read.
var earlyReads = map[string]func(a, b *user) []byte{
	"receive": func(a, b *user) []byte {
		b.receive(0, 64)
		return b.memory[:64]
	},
	"next receive": func(a, b *user) []byte {
		b.receive(0, 64)
		b.receive(64, 64)
		a.send(1, ibverbs.SendSignaled, 0, 8)
		b.received(1)
		return b.memory[64:128]
	},
	"shared receive": func(a, b *user) []byte {
		b.share(a, 3)
		return b.memory[64*2 : 64*3]
	},
	"RDMA read": func(a, b *user) []byte {
		must(a.qp.ToSQD(false))
		from := b.peerMemory().Remote().Sub(0, 64)
		a.posts(func(s *ibverbs.SendBatch) error { return s.Read(1, from, ibverbs.SendSignaled, a.mr.Sub(0, 64)) })
		return a.memory[:64]
	},
	"atomic operation": func(a, b *user) []byte {
		must(a.qp.ToSQD(false))
		word := b.peerMemory().Remote().Sub(0, 8)
		a.posts(func(s *ibverbs.SendBatch) error {
			return s.FetchAdd(1, word, 1, ibverbs.SendSignaled, a.mr.Sub(0, 8))
		})
		return a.memory[:8]
	},
}

// is panics unless memory has n bytes from at on with the value.
func (u *user) is(at, n int, value byte) {
	if got := u.memory[at : at+n]; !bytes.Equal(got, bytes.Repeat([]byte{value}, n)) {
		panic(fmt.Sprintf("memory from %d on has %q instead of %d", at, got, value))
	}
}

// at returns a byte of memory to which the device may be writing.
func (u *user) at(i int) byte {
	word := (*uint32)(unsafe.Pointer(uintptr(unsafe.Pointer(&u.memory[i])) &^ 3))
	return byte(atomic.LoadUint32(word))
}

// closedPrograms use memory to which no peer has access, only while it belongs
// to them.
var closedPrograms = users{
	"memory behind a message": func(a, b *user) {
		setAll(a.memory, 1)
		setAll(b.memory, 2)
		for _, n := range []int{0, 1, 5, 8, 63, 64, 65, 1000, 4097} {
			b.receive(7, 5000)
			a.send(1, ibverbs.SendSignaled, 3, n)
			b.received(1)
			a.sent(1)
			b.is(0, 7, 2)
			b.is(7, n, 1)
			b.is(7+n, size-7-n, 2)
			setAll(b.memory, 2)
		}
	},
	"several segments": func(a, b *user) {
		setAll(a.memory, 1)
		setAll(b.memory, 2)
		batch := result(ibverbs.NewRecvBatch(1, 2))
		must(batch.Recv(1, b.mr.Sub(1, 30), b.mr.Sub(100, 50)))
		result(b.qp.PostRecv(batch))
		a.send(1, ibverbs.SendSignaled, 0, 45)
		b.received(1)
		a.sent(1)
		b.is(0, 1, 2)
		b.is(1, 30, 1)
		b.is(31, 69, 2)
		b.is(100, 15, 1)
		b.is(115, 100, 2)
	},
	"receive for an RDMA write": func(a, b *user) {
		setAll(b.memory, 2)
		b.receive(0, 64)
		to := b.peerMemory().Remote().Sub(0, 64)
		a.posts(func(s *ibverbs.SendBatch) error { return s.WriteImm(1, to, 7, ibverbs.SendSignaled, a.mr.Sub(64, 64)) })
		b.received(1)
		a.sent(1)
		b.is(0, 64, 2)
	},
	"flushed receive": func(a, b *user) {
		setAll(b.memory, 2)
		b.receive(0, 64)
		must(b.qp.SetError())
		b.flushed(b.recvCQ)
		b.is(0, 64, 2)
	},
	"reset queue pair": func(a, b *user) {
		setAll(b.memory, 2)
		b.receive(0, 64)
		must(b.qp.ToReset())
		b.is(0, 64, 2)
	},
	"closed queue pair": func(a, b *user) {
		setAll(b.memory, 2)
		b.receive(0, 64)
		must(b.qp.Close())
		b.is(0, 64, 2)
	},
	"closed region": func(a, b *user) {
		setAll(b.memory, 2)
		mr := result(b.pd.Register(b.memory, ibverbs.AccessLocalWrite))
		batch := result(ibverbs.NewRecvBatch(1, 1))
		must(batch.Recv(1, mr.Sub(0, 64)))
		result(b.qp.PostRecv(batch))
		must(mr.Close())
		b.is(0, 64, 2)
	},
	"failed RDMA read": func(a, b *user) {
		setAll(a.memory, 2)
		from := b.peerMemory().Remote().Sub(0, 64)
		from.RKey++
		a.posts(func(s *ibverbs.SendBatch) error { return s.Read(1, from, ibverbs.SendSignaled, a.mr.Sub(0, 64)) })
		a.flushed(a.sendCQ)
		a.is(0, 64, 2)
	},
	"RDMA read and atomic operation": func(a, b *user) {
		from := b.peerMemory()
		setAll(from.Bytes(), 3)
		for range 3 {
			a.posts(func(s *ibverbs.SendBatch) error { return s.Read(1, from.Remote().Sub(0, 64), 0, a.mr.Sub(5, 64)) })
			a.posts(func(s *ibverbs.SendBatch) error {
				return s.FetchAdd(2, from.Remote().Sub(64, 8), 0, ibverbs.SendSignaled, a.mr.Sub(80, 8))
			})
			a.sent(2)
			a.is(5, 64, 3)
			a.is(80, 8, 3)
		}
	},
	"the same memory for sends and receives": func(a, b *user) {
		for round := range 10 {
			setAll(a.memory, byte(round))
			for range 4 {
				a.receive(0, 64)
				b.receive(0, 64)
			}
			a.send(1, ibverbs.SendSignaled, 0, 64)
			b.received(1)
			b.is(0, 64, byte(round))
			b.send(1, ibverbs.SendSignaled, 0, 64)
			a.received(1)
			a.is(0, 64, byte(round))
			a.sent(1)
			b.sent(1)
			for range 3 {
				a.send(1, ibverbs.SendSignaled, 0, 64)
				b.send(1, ibverbs.SendSignaled, 0, 64)
			}
			for range 3 {
				a.sent(1)
				b.sent(1)
				a.received(1)
				b.received(1)
			}
		}
	},
	"fenced send of the result of a read": func(a, b *user) {
		from := b.peerMemory()
		setAll(from.Bytes(), 3)
		b.receive(0, 64)
		a.posts(func(s *ibverbs.SendBatch) error { return s.Read(1, from.Remote().Sub(0, 64), 0, a.mr.Sub(0, 64)) })
		a.send(2, ibverbs.SendSignaled|ibverbs.SendFence, 0, 64)
		a.sent(2)
		b.received(1)
		b.is(0, 64, 3)
	},
	"region that peers get access to": func(a, b *user) {
		setAll(b.memory, 2)
		b.receive(0, 64)
		open := result(b.pd.Register(b.memory, allAccess))
		b.is(0, 64, 2)
		b.receive(64, 64)
		b.is(0, 128, 2)
		a.send(1, 0, 0, 64) // of which the peer changes the memory
		mine := result(a.pd.Register(a.memory, allAccess))
		b.posts(func(s *ibverbs.SendBatch) error {
			return s.Write(1, mine.Remote().Sub(0, 64), ibverbs.SendSignaled, open.Sub(0, 64))
		})
		b.sent(1)
		a.send(2, ibverbs.SendSignaled, 64, 64)
		a.sent(2)
	},
	"bursts": func(a, b *user) {
		setAll(b.memory, 2)
		for range 50 {
			for i := range 16 {
				b.receive(i*128, 128)
			}
			for i := range 16 {
				a.memory[i*64]++
				flags := ibverbs.SendFlags(0)
				if i%4 == 3 {
					flags = ibverbs.SendSignaled
				}
				a.send(uint64(i), flags, i*64, 64)
				if i%4 == 3 {
					a.sent(uint64(i))
				}
			}
			for i := range 16 {
				b.received(1)
				b.is(i*128+64, 64, 2)
			}
		}
	},
	"unreliable message that is dropped": func(first, _ *user) {
		a, b := pairOfUsers(first.device, ibverbs.QPTypeUC, 0)
		setAll(a.memory, 1)
		setAll(b.memory, 2)
		b.receive(0, 5000)
		a.send(1, ibverbs.SendSignaled, 0, size) // its first packet alone fits
		a.send(2, ibverbs.SendSignaled, 0, 8)
		b.received(1)
		b.is(0, 8, 1)
		b.is(4096, size-4096, 2)
		a.sent(1)
		a.sent(2)
	},
	"RDMA read whose response comes again": func(a, b *user) {
		setAll(a.memory, 2)
		page := syscall.Getpagesize()
		memory := result(syscall.Mmap(-1, 0, 2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON))
		setAll(memory, 3)
		from := result(b.pd.Register(memory, allAccess)).Remote().Sub(uint64(page-512), 1024)
		must(syscall.Mprotect(memory[page:], syscall.PROT_NONE)) // the device can read the beginning alone
		a.posts(func(s *ibverbs.SendBatch) error {
			return s.Read(1, from, ibverbs.SendSignaled, a.mr.Sub(0, 256), a.mr.Sub(1024, 768))
		})
		for until := time.Now().Add(time.Minute); a.at(128) != 3; {
			if time.Now().After(until) {
				panic("no response within a minute")
			}
		}
		must(syscall.Mprotect(memory[page:], syscall.PROT_READ))
		a.sent(1)
		a.is(0, 256, 3)
		a.is(256, 768, 2)
		a.is(1024, 768, 3)
		a.is(1792, size-1792, 2)
	},
	"counted receives that a peer names": func(first, _ *user) {
		a, b := pairOfUsers(first.device, ibverbs.QPTypeRC, 0)
		b.counter = result(counter.Create(b.device, counter.Requests))
		b.shareXRC(a, 3)
		for i := range 2 {
			a.send(1, ibverbs.SendSignaled, 0, 8)
			a.sent(1)
			b.counts(i + 1)
			b.memory[32] = byte(i + 1)
			b.received(1)
			b.shareNamed(a, 3) // a shared receive queue that exists later
		}
	},
	"empty messages": func(a, b *user) {
		b.receive(0, 0)
		a.send(1, ibverbs.SendSignaled, 0, 0)
		a.sent(1)
		b.received(1)
	},
}

// matchTags uses the same memory for a send and for a receive that matches
// tags.
func matchTags(first, _ *user) {
	a, b := newUser(first.device, ibverbs.QPTypeRC, 0), newUser(first.device, ibverbs.QPTypeRC, 0)
	messages := result(a.device.CreateCQ(ibverbs.CQConfig{CompQueue: 8, Fields: ibverbs.WCStandard | ibverbs.WCWithTMInfo}))
	srq := result(a.pd.CreateSRQ(ibverbs.SRQConfig{Type: ibverbs.SRQTypeTagMatching, CQ: messages, RecvQueue: 4, MaxTags: 4, MaxTagOps: 4}))
	a.create(ibverbs.QPConfig{SendCQ: a.sendCQ, RecvCQ: a.recvCQ, SendQueue: 16, SRQ: srq})
	connectUsers(a, b)
	setAll(a.memory, 1)
	b.receive(0, 64)
	a.send(1, ibverbs.SendSignaled, 0, 64)
	b.received(1)
	batch := result(tag.NewBatch(1, 1))
	must(batch.Add(tag.Op{}, tag.Recv{Tag: 7, Mask: 0xFF, ID: 1}, a.mr.Sub(0, 64)))
	result(tag.Post(srq, batch))
	setAll(b.memory, 2)
	copy(b.memory, result(tag.Header{Kind: tag.MessageEager, Tag: 7}.AppendBinary(nil)))
	b.send(2, ibverbs.SendSignaled, 0, 64)
	b.sent(2)
	a.sent(1)
}

func setAll(b []byte, value byte) {
	for i := range b {
		b[i] = value
	}
}

// checkedProgram runs a program on the kind of memory args[1]. Programs that
// read early print what they have read.
func checkedProgram(args []string, stdout, stderr io.Writer) int {
	must(softroce.Use(softroce.Config{}))
	memoryOf = memories[args[1]]
	set := maps.Clone(rightPrograms)
	for name, f := range closedPrograms {
		set["closed: "+name] = f
	}
	for name, m := range checkedMistakes {
		set["mistake: "+name] = m.run
	}
	for name, f := range earlyReads {
		set["early: "+name] = func(a, b *user) { fmt.Fprintf(stdout, "%s", f(a, b)) }
	}
	set["tags"] = matchTags
	run(set[args[0]])
	return 0
}

// checked runs a program with the variable VERBENA_CHECK.
func checked(t *testing.T, check, program, memory string) *process.Process {
	cmd := process.Command(t, "checked", program, memory)
	cmd.Env = append(cmd.Env, "VERBENA_CHECK="+check)
	p := process.Run(t, cmd)
	p.Wait()
	return p
}

const mistaken = "WARNING: VERBENA_CHECK: the program wrote to memory of a posted "

func TestCheckReportsMistakes(t *testing.T) {
	for name, m := range checkedMistakes {
		t.Run(name, func(t *testing.T) {
			for memory := range memories {
				switch m.operation {
				case "receive", "RDMA read", "atomic operation":
					if memory == "open" || memory == "odd" && m.operation == "atomic operation" {
						continue // peers might write to it, and only whole words are filled
					}
				}
				p := checked(t, "1", "mistake: "+name, memory)
				require.Zero(t, p.Wait(), p.Output())
				report := p.Stderr()
				require.Contains(t, report, mistaken+m.operation+"\n", memory)
				require.Contains(t, report, "softroce_test."+m.posted, memory)
				require.Contains(t, report, "check_linux_test.go", memory)
				require.Equal(t, 1, strings.Count(report, "WARNING"), report)
			}
		})
	}
}

func TestCheckShowsEarlyReads(t *testing.T) {
	for name := range earlyReads {
		t.Run(name, func(t *testing.T) {
			for memory := range memories {
				p := checked(t, "1", "early: "+name, memory)
				require.Zero(t, p.Wait(), p.Output())
				require.Empty(t, p.Stderr())
				filled := memory != "open" && (memory != "odd" || name != "atomic operation") // only whole words are
				require.Equal(t, filled, strings.Contains(p.Stdout()+p.Stdout(), "too soon"), "%s: %q", memory, p.Stdout())
			}
		})
	}
}

func TestCheckBlamesNoRightProgram(t *testing.T) {
	for name := range rightPrograms {
		t.Run(name, func(t *testing.T) {
			p := checked(t, "abort", name, "open")
			require.Zero(t, p.Wait(), p.Output())
			require.Empty(t, p.Output())
		})
	}
	for name := range closedPrograms {
		t.Run(name, func(t *testing.T) {
			for memory := range memories {
				p := checked(t, "abort", "closed: "+name, memory)
				require.Zero(t, p.Wait(), p.Output())
				require.Empty(t, p.Output(), memory)
			}
		})
	}
}

// The check does not know the receives of tag lists, so it ends, and says so.
func TestCheckEndsWithTags(t *testing.T) {
	for memory := range memories {
		p := checked(t, "abort", "tags", memory)
		require.Zero(t, p.Wait(), p.Output())
		require.Equal(t, "softroce: the check of memory ends: the program matches tags\n", p.Output())
	}
}

// Without the variable, nothing is filled or reported.
func TestCheckIsOff(t *testing.T) {
	for _, check := range []string{"", "0"} {
		p := checked(t, check, "mistake: write while a send reads", "heap")
		require.Empty(t, p.Output())
		p = checked(t, check, "early: receive", "heap")
		require.Equal(t, strings.Repeat("\x00", 64), p.Output())
	}
}

func TestCheckAborts(t *testing.T) {
	p := checked(t, "abort", "mistake: write while a send reads", "heap")
	require.NotZero(t, p.Wait())
	require.Contains(t, p.Stderr(), mistaken+"send\n")
	require.Contains(t, p.Stderr(), "SIGABRT")
}

func TestWrongCheck(t *testing.T) {
	p := checked(t, "yes", "closed: bursts", "heap")
	require.NotZero(t, p.Wait())
	require.Contains(t, p.Stderr(), `VERBENA_CHECK=yes: check is "yes": want 0, 1 or abort`)
}
