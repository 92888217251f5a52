// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"time"
)

// A Syndrome is the first byte of the ACK header: an ACK, a NAK with its
// reason, or an RNR NAK with the time to wait.
type Syndrome uint8

// The syndromes other than RNR NAK and ACK with credits.
const (
	Ack                Syndrome = 0x1F // without credits, as the receiver does not count its receives
	NakSequence        Syndrome = 0x60
	NakInvalidRequest  Syndrome = 0x61
	NakRemoteAccess    Syndrome = 0x62
	NakRemoteOperation Syndrome = 0x63
	NakInvalidRD       Syndrome = 0x64
)

// credits maps the codes 0 to 30 of an ACK to numbers of receives.
var credits = [31]int{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
	6144, 8192, 12288, 16384, 24576, 32768,
}

// AckCredits returns the ACK of a receiver with n receives. If n has no code,
// it rounds down.
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

// IsNak reports whether s is a NAK. Its code may be unknown.
func (s Syndrome) IsNak() bool { return s&0xE0 == 0x60 }

// Credits returns the number of receives that an ACK announces. It returns
// false if the ACK announces none.
func (s Syndrome) Credits() (n int, ok bool) {
	if int(s) >= len(credits) {
		return 0, false
	}
	return credits[s], true
}

// RNRTimer returns the timer code of an RNR NAK.
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

// RNRDelay returns the time that a timer code from 0 to 31 stands for. Code 0
// is the longest.
func RNRDelay(code uint8) time.Duration { return rnrDelays[code&0x1F] * 10 * time.Microsecond }

// RNRTimer returns the code of the shortest time that is at least d, or of the
// longest time if there is none.
func RNRTimer(d time.Duration) uint8 {
	for code := uint8(1); code < 32; code++ {
		if RNRDelay(code) >= d {
			return code
		}
	}
	return 0
}

// timeUnit is the unit of all other times, which are a power of two times it.
const timeUnit = 4096 * time.Nanosecond

// AckTimeout returns the time that a queue pair's timeout code from 0 to 31
// stands for. It returns 0 for code 0, which means no timeout.
func AckTimeout(code uint8) time.Duration {
	if code&0x1F == 0 {
		return 0
	}
	return timeUnit << (code & 0x1F)
}

// AckTimeoutCode returns the code of the shortest time that is at least d, or
// of the longest time if there is none. If d is not positive, it returns 0,
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

// CMTimeout returns the time that a code from 0 to 31 stands for in messages of
// the connection manager.
func CMTimeout(code uint8) time.Duration { return timeUnit << (code & 0x1F) }

// LinuxCMTimeout returns the time that Linux waits for a code, in place of
// CMTimeout: a millisecond for codes up to 8, and twice as long for each
// further code.
func LinuxCMTimeout(code uint8) time.Duration {
	return time.Millisecond << max(int(code&0x1F)-8, 0)
}
