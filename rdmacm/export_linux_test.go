package rdmacm

import "syscall"

// Readable reports whether C has an event on the channel.
func Readable(ch *EventChannel) bool {
	var set syscall.FdSet
	const bits = 64
	set.Bits[ch.raw.Fd/bits] = 1 << (ch.raw.Fd % bits)
	n, err := syscall.Select(int(ch.raw.Fd)+1, &set, nil, nil, &syscall.Timeval{})
	return err == nil && n == 1
}
