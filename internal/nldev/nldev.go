// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/verbena-go/verbena/internal/netlink"
)

// Commands of enum rdma_nldev_command.
const (
	cmdGet    = 1
	cmdSysGet = 6
)

// Table is a kind of objects that the kernel lists. It has the command that
// requests the list, and the attribute numbers of the list and of an object in
// it.
type Table struct {
	name                  string
	command, table, entry uint16
}

// Kinds of objects that the kernel lists.
var (
	QueuePairs        = Table{"queue pairs", 10, 19, 20}
	ConnectionIDs     = Table{"cm_ids", 11, 30, 31}
	CompletionQueues  = Table{"completion queues", 12, 35, 36}
	MemoryRegions     = Table{"memory regions", 13, 40, 41}
	ProtectionDomains = Table{"protection domains", 14, 46, 47}
)

// Attribute numbers of enum rdma_nldev_attr, with the types of their values.
const (
	AttrDeviceIndex = 1  // u32
	AttrDeviceName  = 2  // string
	AttrPort        = 3  // u32; of a device: number of its ports
	AttrLocalQPN    = 21 // u32
	AttrRemoteQPN   = 22 // u32
	AttrType        = 26 // u8
	AttrState       = 27 // u8
	AttrPID         = 28 // u32; process that uses the object
	AttrKernelName  = 29 // string; part of the kernel that uses the object
	AttrPortSpace   = 32 // u32
	AttrSource      = 33 // struct sockaddr_storage
	AttrDestination = 34 // struct sockaddr_storage
	AttrCQE         = 37 // u32
	AttrUses        = 38 // u64
	AttrPollContext = 39 // u8
	AttrRKey        = 42 // u32; only with CAP_NET_ADMIN
	AttrLKey        = 43 // u32; only with CAP_NET_ADMIN
	AttrLength      = 45 // u64
	AttrPDN         = 60 // u32
	AttrCQN         = 61 // u32
	AttrMRN         = 62 // u32
	AttrCMIDN       = 63 // u32
	attrNetnsMode   = 66 // u8
)

// Device is an RDMA device.
type Device struct {
	Index uint32
	Name  string
}

// Conn is a netlink socket for queries to the kernel. It must not be used
// concurrently.
type Conn struct{ kernel *netlink.Conn }

const (
	protocol = 20      // NETLINK_RDMA
	client   = 5 << 10 // RDMA_NL_NLDEV; the upper bits of the type of a message, before the command
)

// Open opens a socket, for which no privilege is needed. It fails with
// syscall.EPROTONOSUPPORT if the kernel has no RDMA support.
func Open() (*Conn, error) {
	c, err := netlink.Open(protocol)
	if err != nil {
		return nil, err
	}
	return &Conn{c}, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return c.kernel.Close() }

// ask sends a request and returns the attributes of each message that answers
// it.
func (c *Conn) ask(command, flags uint16, body []byte) ([]netlink.Attributes, error) {
	messages, err := c.kernel.Ask(client|command, flags, body)
	if err != nil {
		return nil, err
	}
	var all []netlink.Attributes
	for _, m := range messages {
		attributes, err := netlink.Parse(m)
		if err != nil {
			return nil, err
		}
		all = append(all, attributes)
	}
	return all, nil
}

// Devices returns the RDMA devices of this network namespace.
func (c *Conn) Devices() ([]Device, error) {
	messages, err := c.ask(cmdGet, netlink.Dump, nil)
	if err != nil {
		return nil, fmt.Errorf("listing the RDMA devices: %w", err)
	}
	var all []Device
	for _, m := range messages {
		if index, ok := m.Uint32(AttrDeviceIndex); ok {
			all = append(all, Device{index, m.String(AttrDeviceName)})
		}
	}
	return all, nil
}

// Objects returns the objects of a device that this process may see: those of
// its PID namespace and, in the initial PID namespace, also those of the
// kernel. If the device was removed, there are none.
func (c *Conn) Objects(of Device, table Table) ([]netlink.Attributes, error) {
	messages, err := c.ask(table.command, netlink.Dump, netlink.Append(nil, AttrDeviceIndex, binary.NativeEndian.AppendUint32(nil, of.Index)))
	if errors.Is(err, syscall.EINVAL) { // the kernel's error for an unknown device
		if there, e := c.Devices(); e == nil && !contains(there, of) {
			return nil, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing the %s of %s: %w", table.name, of.Name, err)
	}
	var all []netlink.Attributes
	for _, m := range messages {
		for object, err := range m.Entries(table.table, table.entry) {
			if err != nil {
				return nil, fmt.Errorf("listing the %s of %s: %w", table.name, of.Name, err)
			}
			all = append(all, object)
		}
	}
	return all, nil
}

func contains(devices []Device, wanted Device) bool {
	for _, d := range devices {
		if d == wanted {
			return true
		}
	}
	return false
}

// SharedNamespaces reports whether every network namespace sees all RDMA
// devices.
func (c *Conn) SharedNamespaces() (bool, error) {
	messages, err := c.ask(cmdSysGet, 0, nil)
	if err != nil {
		return false, fmt.Errorf("querying the mode of network namespaces: %w", err)
	}
	for _, m := range messages {
		if mode, ok := m.Uint8(attrNetnsMode); ok {
			return mode == 1, nil
		}
	}
	return false, fmt.Errorf("querying the mode of network namespaces: %w", netlink.ErrShort)
}
