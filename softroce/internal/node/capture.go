// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// capture writes packets to w in pcap format, with the headers and the ICRC
// that they would have on the wire.
type capture struct {
	w   io.Writer
	buf []byte
	err error // first error of w, after which nothing is written
}

// CaptureVariable is the environment variable that names a capture file. The
// process appends the packets that it sends to the file.
const CaptureVariable = "VERBENA_CAPTURE"

// pcapHeader returns the header with which a pcap file begins.
func pcapHeader() []byte {
	const (
		magic   = 0xA1B23C4D // with nanoseconds
		rawIP   = 101        // LINKTYPE_RAW: packets begin with the IP header
		maxSize = 1 << 16
	)
	b := binary.NativeEndian.AppendUint32(nil, magic)
	b = binary.NativeEndian.AppendUint16(b, 2)
	b = binary.NativeEndian.AppendUint16(b, 4)
	b = append(b, make([]byte, 8)...)
	b = binary.NativeEndian.AppendUint32(b, maxSize)
	return binary.NativeEndian.AppendUint32(b, rawIP)
}

// BeginCapture writes the header of a capture file to w. It needs no node.
func BeginCapture(w io.Writer) error {
	_, err := w.Write(pcapHeader())
	return err
}

// Capture writes each packet that the process sends to w, until stop is called.
// On the UDP network, it also writes the packets that arrive. stop returns the
// first error of w. The node is locked while w writes. The caller must have
// called BeginCapture.
func (n *Node) Capture(w io.Writer) (stop func() error) {
	c := &capture{w: w}
	n.Lock()
	n.path.captures = append(n.path.captures, c)
	n.path.watch()
	n.Unlock()
	return func() error {
		n.Lock()
		defer n.Unlock()
		n.path.captures = slices.DeleteFunc(n.path.captures, func(other *capture) bool { return other == c })
		n.path.watch()
		return c.err
	}
}

// chosenCaptures returns the capture to the file that CaptureVariable names. It
// returns nil if the variable is not set or the file cannot be used.
func chosenCaptures() []*capture {
	path := os.Getenv(CaptureVariable)
	if path == "" {
		return nil
	}
	w, err := appendTo(path)
	if err != nil { // the program goes on without a capture
		fmt.Fprintf(os.Stderr, "softroce: %s: %v\n", CaptureVariable, err)
		return nil
	}
	return []*capture{{w: w}}
}

// appendTo opens the capture file path for appending. Several processes may
// append to the file: each call of Write appends a whole record.
func appendTo(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	if err := begin(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// begin writes the pcap header to the file f if f is empty. It fails if f
// begins with something else.
func begin(f *os.File) error {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	defer syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	info, err := f.Stat()
	if err != nil {
		return err
	}
	header := pcapHeader()
	if info.Size() == 0 {
		_, err := f.Write(header)
		return err
	}
	found := make([]byte, len(header))
	if _, err := f.ReadAt(found, 0); err != nil || !bytes.Equal(found, header) {
		return errors.New("the file exists and is not a capture of raw IP packets; it is left as it is")
	}
	return nil
}

// add writes the packet p, which was sent at the time when.
func (c *capture) add(p *wire.Packet, when time.Time) {
	if c.err != nil {
		return
	}
	port := p.SrcPort
	if port == 0 { // packets between processes of this machine have no source port
		port = 0xC000 | uint16(p.DestQP&0x3FFF)
	}
	flow := wire.NewFlow(p.SGID, p.DGID, port)
	size := p.Size()
	b := c.buf[:0]
	b = append(b, make([]byte, 16)...) // the record's header
	b = appendIP(b, p, size)
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint16(b, wire.Port)
	b = binary.BigEndian.AppendUint16(b, uint16(8+size))
	b = append(b, 0, 0)
	start := len(b)
	b = append(b, make([]byte, size)...)
	if !marshal(b[start:], p) {
		return
	}
	flow.Seal(b[start:], 0)
	binary.NativeEndian.PutUint32(b[0:], uint32(when.Unix()))
	binary.NativeEndian.PutUint32(b[4:], uint32(when.Nanosecond()))
	binary.NativeEndian.PutUint32(b[8:], uint32(len(b)-16))
	binary.NativeEndian.PutUint32(b[12:], uint32(len(b)-16))
	c.buf = b
	c.err = errWriterEnded
	within(func() { _, c.err = c.w.Write(b) })
}

var errWriterEnded = errors.New("the writer's Write has called runtime.Goexit instead of returning")

// appendIP appends the IP header for the packet p, whose UDP payload has size
// bytes.
func appendIP(b []byte, p *wire.Packet, size int) []byte {
	if p.DGID.Is4() {
		src, dst := p.SGID.Addr().As4(), p.DGID.Addr().As4()
		start := len(b)
		b = append(b, 0x45, p.TrafficClass)
		b = binary.BigEndian.AppendUint16(b, uint16(20+8+size))
		b = append(b, 0, 0, 0x40, 0, p.HopLimit, 17, 0, 0)
		b = append(append(b, src[:]...), dst[:]...)
		sum := uint32(0)
		for i := start; i < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		sum = sum&0xFFFF + sum>>16
		binary.BigEndian.PutUint16(b[start+10:], ^uint16(sum+sum>>16))
		return b
	}
	b = binary.BigEndian.AppendUint32(b, 6<<28|uint32(p.TrafficClass)<<20|p.FlowLabel)
	b = binary.BigEndian.AppendUint16(b, uint16(8+size))
	b = append(b, 17, p.HopLimit)
	return append(append(b, p.SGID[:]...), p.DGID[:]...)
}
