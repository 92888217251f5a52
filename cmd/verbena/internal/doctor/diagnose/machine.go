// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/verbena-go/verbena/ibverbs"
)

// machine is the machine to check: this one, or one that a test has made up.
type machine struct {
	root    string // directory with the file system
	netDevs []netDev
	open    func(path string) error                                                // opens a device file for reading and writing
	output  func(ctx context.Context, name string, args ...string) (string, error) // returns the output of a program
	source  func(netip.Addr) (netip.Addr, error)                                   // returns the address from which packets go to another address
	peer    Peer                                                                   // peer to check, or the zero value

	importsDMABuf func(device string) bool

	devices   []ibverbs.DeviceInfo // devices that the check "devices" has found
	peerAddrs []netip.Addr         // addresses of the peer, from the check of its address
}

// netDev is a network interface.
type netDev struct {
	name                  string
	up, carrier, loopback bool
	mtu                   int
	addrs                 []netip.Prefix
}

// reachable returns the addresses that are not link-local.
func (d netDev) reachable() (addrs []netip.Prefix) {
	for _, a := range d.addrs {
		if ip := a.Addr(); ip.IsGlobalUnicast() {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

func thisMachine() (*machine, error) {
	m := &machine{root: "/", open: openDevice, source: sourceOf, importsDMABuf: importsDMABuf, output: func(ctx context.Context, name string, args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, name, args...).Output()
		return string(out), err
	}}
	interfaces, err := net.Interfaces()
	for _, i := range interfaces {
		d := netDev{
			name: i.Name, mtu: i.MTU, up: i.Flags&net.FlagUp != 0, carrier: i.Flags&net.FlagRunning != 0, loopback: i.Flags&net.FlagLoopback != 0,
		}
		addrs, _ := i.Addrs() // it may have gone
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				d.addrs = append(d.addrs, prefix)
			}
		}
		m.netDevs = append(m.netDevs, d)
	}
	return m, err
}

func openDevice(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// netDev returns the network interface with a name, or the zero value if there
// is none.
func (m *machine) netDev(name string) netDev {
	for _, d := range m.netDevs {
		if d.name == name {
			return d
		}
	}
	return netDev{}
}

func (m *machine) path(path string) string { return filepath.Join(m.root, path) }

func (m *machine) exists(path string) bool {
	_, err := os.Stat(m.path(path))
	return err == nil
}

// read returns the content of a file without space around it, or "" if the file
// cannot be read.
func (m *machine) read(path string) string {
	b, _ := os.ReadFile(m.path(path))
	return strings.TrimSpace(string(b))
}

// list returns the names in a directory, sorted, or none if there is no such
// directory.
func (m *machine) list(path string) (names []string) {
	entries, _ := os.ReadDir(m.path(path))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
