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

// The ICRC covers the identification in IPv4's header, which a socket can
// neither choose nor see. Linux uses 0 for datagrams of an unconnected socket
// that must not be fragmented, and 0, 1, 2 and so on for those that it cuts
// from one message. Other systems with Linux's calls may differ.

const (
	soTimestamping = 37
	txSched        = 1 << 8 // a time stamp when the datagram is sent, with the datagram
	software       = 1 << 4
	msgErrQueue    = 0x2000

	probes = 3 // a counter would have to be 0 each time
)

// CheckIdentification returns an error unless the datagrams of a socket from
// OpenUDP have the identification 0. It sends some to the socket itself, and
// has the system return them with their headers.
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
			return fmt.Errorf("this system gives packets the identification %d, not 0", id)
		}
	}
	if err != nil {
		return fmt.Errorf("this system does not tell which identification it gives packets: %w", err)
	}
	return nil
}

// probe returns the identification of a datagram.
func probe(conn *net.UDPConn, raw syscall.RawConn) (uint16, error) {
	token := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, rand.Uint64()), rand.Uint64())
	if _, err := conn.WriteTo(token, conn.LocalAddr()); err != nil {
		return 0, err
	}
	const udp, ip = 8, 20
	var packet, control [256]byte
	for range 1000 { // the time stamp is there when sending returns, unless the machine is busy
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
			return 0, errors.New("a packet comes back without its header")
		}
		return binary.BigEndian.Uint16(packet[at-udp-ip+4:]), nil
	}
	return 0, errors.New("a packet does not come back")
}
