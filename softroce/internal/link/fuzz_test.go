// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Whatever a process writes into a ring and says about it, reading ends, and
// each frame lies in the ring. What was not spoilt arrives as it was
// written.
func FuzzRing(f *testing.F) {
	const (
		write = iota // a frame of n bytes, all x
		read         // x frames
		count        // claim to have written n bytes more
		spoil        // write x over byte n of the ring
		ops
	)
	op := func(op byte, n uint16, x byte) []byte {
		return append(binary.LittleEndian.AppendUint16([]byte{op}, n), x)
	}
	add := func(script ...[]byte) {
		var all []byte
		for _, s := range script {
			all = append(all, s...)
		}
		f.Add(all)
	}
	add(op(write, 0, 1), op(write, 1, 2), op(write, 100, 3), op(read, 0, 9))
	add(op(count, 8, 0))
	add(op(count, 12, 0))
	add(op(spoil, 0, 100), op(count, 8, 0))                                                                                               // longer than what is written
	add(op(spoil, 2, 1), op(count, 65528, 0), op(count, 16, 0))                                                                           // longer than any frame
	add(op(write, 40, 1), op(spoil, 0, 0xFF), op(read, 0, 1))                                                                             // another length than was written
	add(op(write, 8, 1), op(read, 0, 1), op(spoil, 16, 255), op(spoil, 17, 255), op(spoil, 18, 255), op(spoil, 19, 255), op(count, 8, 0)) // skip
	add(slices.Repeat(op(count, 65528, 0), 17))                                                                                           // more than there is
	round := slices.Repeat(slices.Concat(op(write, MaxFrame-4, 5), op(read, 0, 1)), ringBytes/MaxFrame-1)
	add(round, op(write, MaxFrame-4, 5), op(read, 0, 1), op(write, 1, 6)) // up to the end, and on
	add(round, op(write, MaxFrame, 5), op(read, 0, 1))                    // 8 bytes too long for the end
	all := make([]byte, ringStart+ringBytes)
	frames := all[ringStart:]
	touched := 0 // bytes of frames
	f.Fuzz(func(t *testing.T, script []byte) {
		clear(all[:ringStart+touched])
		touched = 1 << 16 // as far as spoil reaches
		m := memory{bytes: all, fd: -1}
		w, r := writer{memory: m}, reader{memory: m}
		type message struct {
			length int
			x      byte
		}
		var under []message // way
		spoilt := false
		// take reads a frame and reports whether there was one.
		take := func() bool {
			seen := r.written
			if r.read == seen {
				seen = *pointer[uint64](m, writtenAt)
			}
			have := seen - r.read
			frame, err := r.next()
			if have > ringBytes || have%8 != 0 {
				require.Error(t, err)
			}
			if !spoilt {
				require.NoError(t, err)
				require.Equal(t, len(under) > 0, frame != nil)
			}
			if err != nil || frame == nil {
				return false
			}
			require.LessOrEqual(t, len(frame), MaxFrame)
			require.LessOrEqual(t, r.read, seen, "more than is written")
			if len(frame) > 0 {
				at := uintptr(unsafe.Pointer(&frame[0])) - uintptr(unsafe.Pointer(&frames[0]))
				require.LessOrEqual(t, at, uintptr(len(frames)-len(frame)), "outside of the ring")
			}
			if !spoilt {
				require.Len(t, frame, under[0].length)
				require.Equal(t, len(frame), bytes.Count(frame, []byte{under[0].x}))
				under = under[1:]
			}
			r.give()
			return true
		}
		for ; len(script) >= 4; script = script[4:] {
			n, x := binary.LittleEndian.Uint16(script[1:]), script[3]
			switch script[0] % ops {
			case write:
				length := int(n) % (MaxFrame + 1)
				if frame := w.begin(length); frame != nil {
					require.Len(t, frame, length)
					copy(frame, bytes.Repeat([]byte{x}, length))
					w.end(length)
					touched = min(max(touched, int(w.written)), ringBytes)
					under = append(under, message{length, x})
				} else {
					require.True(t, spoilt || len(under) > 0, "an empty ring has no room")
				}
			case read:
				for range x {
					if !take() {
						break
					}
				}
			case count:
				spoilt = true
				*pointer[uint64](m, writtenAt) += uint64(n)
			case spoil:
				spoilt = true
				frames[n] = x
			}
		}
		for i := 0; take(); i++ {
			require.Less(t, i, ringBytes, "this does not end")
		}
	})
}

// Control messages may be any bytes. Those that are right, before others, are
// understood.
func FuzzControl(f *testing.F) {
	f.Add(uint8(4), uint32(3), uint32(1024), []byte{})
	f.Add(uint8(0), uint32(255), uint32(math.MaxUint32), make([]byte, syscall.SizeofCmsghdr))
	f.Add(uint8(255), uint32(0), uint32(0), []byte{20, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 104, 0, 0, 0, 0, 4, 0, 0})
	f.Add(uint8(1), uint32(64), uint32(8), []byte{255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, class uint8, hops, each uint32, tail []byte) {
		var d Datagram
		require.NotPanics(t, func() { d.readControl(tail) })

		var right []byte
		right = appendMessage(right, syscall.IPPROTO_IP, syscall.IP_TOS, []byte{class})
		right = appendMessage(right, syscall.IPPROTO_IPV6, ipv6HopLimit, binary.NativeEndian.AppendUint32(nil, hops))
		right = appendMessage(right, syscall.IPPROTO_UDP, udpGRO, binary.NativeEndian.AppendUint32(nil, each))
		tail = tail[:min(len(tail), syscall.SizeofCmsghdr-1)] // too short for another
		got := d.readControl(append(right, tail...))
		require.Equal(t, []any{int(each), class, uint8(hops)}, []any{got, d.TrafficClass, d.HopLimit})
	})
}

// appendMessage appends a control message.
func appendMessage(b []byte, level, kind int32, value []byte) []byte {
	m := make([]byte, syscall.CmsgSpace(len(value)))
	*(*syscall.Cmsghdr)(unsafe.Pointer(&m[0])) = syscall.Cmsghdr{Level: level, Type: kind}
	(*syscall.Cmsghdr)(unsafe.Pointer(&m[0])).SetLen(syscall.CmsgLen(len(value)))
	copy(m[syscall.SizeofCmsghdr:], value)
	return append(b, m...)
}
