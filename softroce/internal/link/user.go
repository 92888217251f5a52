// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/verbena-go/verbena/internal/netlink"
)

// Constants of sock_diag(7) that package syscall does not define.
const (
	netlinkSockDiag  = 4
	sockDiagByFamily = 20
	unixDiagUID      = 7
	showUID          = 1 << 6 // UDIAG_SHOW_UID, since Linux 5.3
	diagRequestLen   = 24     // size of struct unix_diag_req
	diagMessageLen   = 16     // size of struct unix_diag_msg
)

// busy returns the error for a socket on which too many connections wait to be
// accepted (see listen(2)). The error matches syscall.EAGAIN if the socket is
// known to be this user's, and otherwise syscall.ECONNREFUSED.
func busy(socket string) error {
	uid, err := userOf(socket)
	switch {
	case err != nil:
		return fmt.Errorf("too many connections wait to be accepted, and the user of the socket is unknown (%w): %w", err, syscall.ECONNREFUSED)
	case int(uid) != os.Geteuid():
		return fmt.Errorf("the peer process runs as another user (%d): %w", uid, syscall.ECONNREFUSED)
	}
	return fmt.Errorf("too many connections wait to be accepted by the peer process: %w", syscall.EAGAIN)
}

// userOf returns the user that listens on a socket, without connecting to it.
func userOf(socket string) (uid uint32, err error) {
	inode, err := inodeOf(socket)
	if err != nil {
		return 0, err
	}
	kernel, err := netlink.Open(netlinkSockDiag)
	if err != nil {
		return 0, err
	}
	defer kernel.Close()
	const anyState, anyCookie = 1<<32 - 1, 1<<64 - 1
	body := make([]byte, diagRequestLen)
	body[0] = syscall.AF_UNIX
	binary.NativeEndian.PutUint32(body[4:], anyState)
	binary.NativeEndian.PutUint32(body[8:], inode)
	binary.NativeEndian.PutUint32(body[12:], showUID)
	binary.NativeEndian.PutUint64(body[16:], anyCookie)
	messages, err := kernel.Ask(sockDiagByFamily, 0, body)
	if err != nil {
		return 0, err
	}
	if len(messages) != 1 || len(messages[0]) < diagMessageLen {
		return 0, netlink.ErrShort
	}
	attributes, err := netlink.Parse(messages[0][diagMessageLen:])
	if err != nil {
		return 0, err
	}
	uid, ok := attributes.Uint32(unixDiagUID)
	if !ok {
		return 0, syscall.EOPNOTSUPP
	}
	return uid, nil
}

// inodeOf returns the inode of a listening socket.
func inodeOf(socket string) (uint32, error) {
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return 0, err
	}
	const listens = 1 << 16 // __SO_ACCEPTCON
	for line := range strings.Lines(string(table)) {
		before, ok := strings.CutSuffix(line, " "+Prefix()+socket+"\n")
		fields := strings.Fields(before)
		if !ok || len(fields) != 7 {
			continue
		}
		flags, err := strconv.ParseUint(fields[3], 16, 32)
		if err != nil || flags&listens == 0 {
			continue
		}
		inode, err := strconv.ParseUint(fields[6], 10, 32)
		return uint32(inode), err
	}
	return 0, syscall.ENOENT
}
