// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"time"
)

// Syndrome is the first byte of the ACK header. It says whether the packet is
// an ACK, a NAK with a reason, or an RNR NAK with a time to wait.
type Syndrome uint8

// Syndromes of ACKs without credits and of NAKs.
const (
	Ack                Syndrome = 0x1F // an ACK that says nothing about the number of posted receives
	NakSequence        Syndrome = 0x60
	NakInvalidRequest  Syndrome = 0x61
	NakRemoteAccess    Syndrome = 0x62
	NakRemoteOperation Syndrome = 0x63
	NakInvalidRD       Syndrome = 0x64
)

// credits maps the codes 0 to 30 in an ACK to the numbers of posted receives
// for which they stand.
var credits = [31]int{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
	6144, 8192, 12288, 16384, 24576, 32768,
}

// AckCredits returns the ACK of a receiver with n posted receives. If no code
// stands for n, the ACK announces the next lower number for which there is a
// code.
func AckCredits(n int) Syndrome {
	s := Syndrome(0)
	for int(s) < len(credits)-1 && credits[s+1] <= n {
		s++
	}
	return s
}

// RNRNak returns the RNR NAK with a timer code from 0 to 31.
func RNRNak(timer uint8) Syndrome { return 0x20 | Syndrome(timer&0x1F) }

// IsAck reports whether s is an ACK.
func (s Syndrome) IsAck() bool { return s&0xE0 == 0 }

// IsRNR reports whether s is an RNR NAK.
func (s Syndrome) IsRNR() bool { return s&0xE0 == 0x20 }

// IsNak reports whether s is a NAK, with a known or unknown reason.
func (s Syndrome) IsNak() bool { return s&0xE0 == 0x60 }

// Credits returns the number of posted receives that an ACK announces. ok is
// false if s announces none.
func (s Syndrome) Credits() (n int, ok bool) {
	if int(s) >= len(credits) {
		return 0, false
	}
	return credits[s], true
}

// RNRTimer returns the timer code of s, which must be an RNR NAK.
func (s Syndrome) RNRTimer() uint8 { return uint8(s & 0x1F) }

func (s Syndrome) String() string {
	switch {
	case s == NakSequence:
		return "NAK (PSN sequence error)"
	case s == NakInvalidRequest:
		return "NAK (invalid request)"
	case s == NakRemoteAccess:
		return "NAK (remote access error)"
	case s == NakRemoteOperation:
		return "NAK (remote operational error)"
	case s == NakInvalidRD:
		return "NAK (invalid RD request)"
	case s == Ack:
		return "ACK"
	case s.IsAck():
		return fmt.Sprintf("ACK (%d receives)", credits[s])
	case s.IsRNR():
		return fmt.Sprintf("RNR NAK (%v)", RNRDelay(s.RNRTimer()))
	}
	return fmt.Sprintf("syndrome %#02x", uint8(s))
}

// rnrDelays maps RNR timer codes to times in units of 10 microseconds.
var rnrDelays = [32]time.Duration{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
	1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRDelay returns the time for a timer code from 0 to 31. Code 0 stands for
// the longest time.
func RNRDelay(code uint8) time.Duration { return rnrDelays[code&0x1F] * 10 * time.Microsecond }

// RNRTimer returns the timer code of the shortest time that is at least d. If
// all times are shorter, it returns 0, the code of the longest.
func RNRTimer(d time.Duration) uint8 {
	for code := uint8(1); code < 32; code++ {
		if RNRDelay(code) >= d {
			return code
		}
	}
	return 0
}

// timeUnit is the unit of the times in CM messages, and of acknowledgement
// timeouts. Each of these times is the unit times a power of two.
const timeUnit = 4096 * time.Nanosecond

// AckTimeout returns the acknowledgement timeout for a code from 0 to 31. It
// returns 0 for code 0, which means no timeout.
func AckTimeout(code uint8) time.Duration {
	if code&0x1F == 0 {
		return 0
	}
	return timeUnit << (code & 0x1F)
}

// AckTimeoutCode returns the code of the shortest acknowledgement timeout that
// is at least d, or 31 if all are shorter. If d is not positive, it returns 0,
// which means no timeout.
func AckTimeoutCode(d time.Duration) uint8 {
	if d <= 0 {
		return 0
	}
	code := uint8(1)
	for code < 31 && AckTimeout(code) < d {
		code++
	}
	return code
}

// CMTimeout returns the time for which a code from 0 to 31 stands in messages
// of the connection manager.
func CMTimeout(code uint8) time.Duration { return timeUnit << (code & 0x1F) }

// LinuxCMTimeout returns the time that Linux uses for a code, where the
// specification requires CMTimeout: a millisecond for codes up to 8, and twice
// as long for each further code.
func LinuxCMTimeout(code uint8) time.Duration {
	return time.Millisecond << max(int(code&0x1F)-8, 0)
}
