// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// The ICRC covers the identification in the IPv4 header, which a socket can
// neither set nor read. For an unconnected socket whose datagrams must not be
// fragmented, Linux uses 0; for the datagrams that it cuts from one message, 0,
// 1, 2 and so on. Other systems that implement Linux's system calls may differ.

const (
	soTimestamping = 37
	txSched        = 1 << 8 // flag that requests a report for each sent datagram, with a copy of the datagram
	software       = 1 << 4
	msgErrQueue    = 0x2000

	probes = 3 // number of datagrams that are checked; a system that counts identifications up would not use 0 for each
)

// CheckIdentification returns an error unless sockets that OpenUDP opens send
// IPv4 datagrams with the identification 0. It sends some datagrams to itself.
// The system puts copies of them, with their headers, into the socket's error
// queue, where CheckIdentification reads the identification.
func CheckIdentification(addr netip.Addr) error {
	conn, err := listenUDP(addr, 0)
	if err != nil {
		return err
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := raw.Control(func(fd uintptr) {
		err = os.NewSyscallError("setsockopt", syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, soTimestamping, txSched|software))
	}); cerr != nil {
		return cerr
	}
	for range probes {
		if err != nil {
			break
		}
		var id uint16
		if id, err = probe(conn, raw); err == nil && id != 0 {
			return fmt.Errorf("this system sends packets with the identification %d instead of 0", id)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot find out the identification of sent packets: %w", err)
	}
	return nil
}

// probe sends a datagram and returns its identification.
func probe(conn *net.UDPConn, raw syscall.RawConn) (uint16, error) {
	token := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, rand.Uint64()), rand.Uint64())
	if _, err := conn.WriteTo(token, conn.LocalAddr()); err != nil {
		return 0, err
	}
	const udp, ip = 8, 20
	var packet, control [256]byte
	for range 1000 { // usually the copy is there when WriteTo returns, unless the machine is busy
		n, err := 0, error(nil)
		if cerr := raw.Control(func(fd uintptr) {
			n, _, _, _, err = syscall.Recvmsg(int(fd), packet[:], control[:], msgErrQueue|syscall.MSG_DONTWAIT)
		}); cerr != nil {
			return 0, cerr
		}
		switch {
		case errors.Is(err, syscall.EAGAIN):
			time.Sleep(time.Millisecond)
			continue
		case err != nil:
			return 0, os.NewSyscallError("recvmsg", err)
		}
		at := bytes.Index(packet[:n], token)
		if at < udp+ip || packet[at-udp-ip] != 0x45 {
			return 0, errors.New("the socket's error queue has a sent packet without its headers")
		}
		return binary.BigEndian.Uint16(packet[at-udp-ip+4:]), nil
	}
	return 0, errors.New("the socket's error queue has no copy of a sent packet")
}
