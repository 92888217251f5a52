// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/verbena-go/verbena/internal/netlink"
	"github.com/verbena-go/verbena/internal/nldev"
)

// Resources lists objects on RDMA devices. Each list is sorted by device and
// number.
type Resources struct {
	QueuePairs        []QueuePair        `json:"queue_pairs"`
	CompletionQueues  []CompletionQueue  `json:"completion_queues"`
	MemoryRegions     []MemoryRegion     `json:"memory_regions"`
	ProtectionDomains []ProtectionDomain `json:"protection_domains"`
	ConnectionIDs     []ConnectionID     `json:"connection_ids"`
}

// Owner is the creator of an object: a process, or a part of the kernel. It is
// zero if the thread that created the object has ended, because the kernel no
// longer knows the process of such a thread.
type Owner struct {
	PID     int    `json:"pid,omitempty"`     // ID of the process; 0 for the kernel
	Program string `json:"program,omitempty"` // name of the process, as ps shows it; empty if the process ended during the call
	// Thread is the ID of the thread that created the object. The kernel
	// reports this ID, and rdma(8) prints it as the pid.
	Thread int    `json:"thread,omitempty"`
	Kernel string `json:"kernel,omitempty"` // part of the kernel, such as ib_core; empty for a process
}

// QueuePair is a queue pair.
type QueuePair struct {
	Device string  `json:"device"`
	Port   int     `json:"port,omitempty"` // 0 if the queue pair has none yet
	Number uint32  `json:"number"`
	Peer   uint32  `json:"peer,omitempty"` // number of the peer's queue pair, 0 if it is not connected
	Type   string  `json:"type"`           // type: RC, UC, UD, XRC_INI, XRC_TGT, RAW_PACKET, DRIVER; SMI or GSI for a queue pair of the kernel
	State  string  `json:"state"`          // state: RESET, INIT, RTR, RTS, SQD, SQE, ERR
	PD     *uint32 `json:"protection_domain,omitempty"`
	Owner
}

// CompletionQueue is a completion queue.
type CompletionQueue struct {
	Device string  `json:"device"`
	Number *uint32 `json:"number,omitempty"` // nil if the kernel does not report it
	Size   int     `json:"size"`             // number of completions that the queue can hold
	Users  uint64  `json:"users"`            // number of send queues, receive queues and others whose requests complete on the queue
	// Polling is the kernel's way to poll a queue of its own: DIRECT, SOFTIRQ,
	// WORKQUEUE or UNBOUND_WORKQUEUE. It is empty for a queue of a process.
	Polling string `json:"polling,omitempty"`
	Owner
}

// MemoryRegion is a memory region.
type MemoryRegion struct {
	Device string  `json:"device"`
	Number *uint32 `json:"number,omitempty"` // nil if the kernel does not report it
	Length uint64  `json:"length"`           // in bytes
	LKey   *uint32 `json:"lkey,omitempty"`   // local key; nil without the capability CAP_NET_ADMIN, as is RKey
	RKey   *uint32 `json:"rkey,omitempty"`
	PD     *uint32 `json:"protection_domain,omitempty"`
	Owner
}

// ProtectionDomain is a protection domain.
type ProtectionDomain struct {
	Device string  `json:"device"`
	Number *uint32 `json:"number,omitempty"` // nil if the kernel does not report it
	Users  uint64  `json:"users"`            // number of objects in the domain
	Owner
}

// ConnectionID is an rdma_cm_id.
type ConnectionID struct {
	Device    string         `json:"device"`
	Port      int            `json:"port,omitempty"`       // 0 for a listener on all ports
	Number    *uint32        `json:"number,omitempty"`     // nil if the kernel does not report it
	QueuePair uint32         `json:"queue_pair,omitempty"` // number of the queue pair; 0 if there is none
	Type      string         `json:"type,omitempty"`       // type of the queue pair; empty if the kernel does not report it
	State     string         `json:"state"`                // state, such as LISTEN, CONNECT, DISCONNECT
	PortSpace string         `json:"port_space"`           // port space: TCP, UDP, IB, IPOIB
	Source    netip.AddrPort `json:"source,omitzero"`      // local address; zero if it is not an IP address
	Dest      netip.AddrPort `json:"destination,omitzero"`
	Owner
}

// AllResources returns the objects that this process may see on the devices of
// its network namespace: those of processes in its PID namespace and, in the
// first PID namespace, those of the kernel. It needs no privileges. Objects
// that are created or destroyed during the call may be missing, or may refer to
// missing ones. AllResources waits only for the kernel, and may be called
// concurrently. The result is empty if the kernel has no RDMA. On systems other
// than Linux, the error matches errors.ErrUnsupported.
func AllResources() (Resources, error) {
	all, err := readResources()
	if err != nil {
		return Resources{}, fmt.Errorf("stat: %w", err)
	}
	return all, nil
}

func readResources() (all Resources, err error) {
	c, err := nldev.Open()
	if errors.Is(err, syscall.EPROTONOSUPPORT) { // this kernel has no RDMA
		return none(), nil
	}
	if err != nil {
		return all, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	devices, err := c.Devices()
	if err != nil {
		return all, err
	}
	slices.SortFunc(devices, func(a, b nldev.Device) int { return strings.Compare(a.Name, b.Name) })
	all = none()
	owners := processes{}
	for _, d := range devices {
		err := errors.Join(
			read(c, d, nldev.QueuePairs, &all.QueuePairs, owners.queuePair),
			read(c, d, nldev.CompletionQueues, &all.CompletionQueues, owners.completionQueue),
			read(c, d, nldev.MemoryRegions, &all.MemoryRegions, owners.memoryRegion),
			read(c, d, nldev.ProtectionDomains, &all.ProtectionDomains, owners.protectionDomain),
			read(c, d, nldev.ConnectionIDs, &all.ConnectionIDs, owners.connectionID),
		)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// none returns empty lists. They are not nil, because JSON has null for a nil
// list.
func none() Resources {
	return Resources{[]QueuePair{}, []CompletionQueue{}, []MemoryRegion{}, []ProtectionDomain{}, []ConnectionID{}}
}

// read adds the objects in a table of the kernel to list, sorted by number. one
// converts an object and returns its number.
func read[T any](c *nldev.Conn, d nldev.Device, table nldev.Table, list *[]T, one func(string, netlink.Attributes) (T, uint32)) error {
	objects, err := c.Objects(d, table)
	type numbered struct {
		object T
		number uint32
	}
	var all []numbered
	for _, o := range objects {
		object, number := one(d.Name, o)
		all = append(all, numbered{object, number})
	}
	slices.SortStableFunc(all, func(a, b numbered) int { return cmp.Compare(a.number, b.number) })
	for _, n := range all {
		*list = append(*list, n.object)
	}
	return err
}

// processes maps the IDs of threads to their processes. It has the threads that
// were looked up so far.
type processes map[int]Owner

// owner returns the creator of an object.
func (p processes) owner(a netlink.Attributes) Owner {
	pid, is := a.Uint32(nldev.AttrPID)
	if !is {
		return Owner{Kernel: a.String(nldev.AttrKernelName)}
	}
	thread := int(pid)
	o, known := p[thread]
	if !known {
		o = Owner{Thread: thread, PID: processOf(thread)}
		o.Program = line("/proc", strconv.Itoa(o.PID), "comm")
		p[thread] = o
	}
	return o
}

// processOf returns the ID of the process of a thread, or the thread's own ID
// if the thread has ended.
func processOf(thread int) int {
	status := line("/proc", strconv.Itoa(thread), "status")
	for l := range strings.Lines(status) {
		if text, is := strings.CutPrefix(l, "Tgid:"); is {
			if pid, err := strconv.Atoi(strings.TrimSpace(text)); err == nil {
				return pid
			}
		}
	}
	return thread
}

func (p processes) queuePair(device string, a netlink.Attributes) (QueuePair, uint32) {
	number := value(a.Uint32(nldev.AttrLocalQPN))
	return QueuePair{
		Device: device, Port: int(value(a.Uint32(nldev.AttrPort))), Number: number, Peer: value(a.Uint32(nldev.AttrRemoteQPN)),
		Type: named(qpTypes, a, nldev.AttrType), State: named(qpStates, a, nldev.AttrState), PD: pointer(a.Uint32(nldev.AttrPDN)), Owner: p.owner(a),
	}, number
}

func (p processes) completionQueue(device string, a netlink.Attributes) (CompletionQueue, uint32) {
	q := CompletionQueue{
		Device: device, Number: pointer(a.Uint32(nldev.AttrCQN)), Size: int(value(a.Uint32(nldev.AttrCQE))), Users: value(a.Uint64(nldev.AttrUses)),
		Owner: p.owner(a),
	}
	if q.PID == 0 {
		q.Polling = named(pollContexts, a, nldev.AttrPollContext)
	}
	return q, value(a.Uint32(nldev.AttrCQN))
}

func (p processes) memoryRegion(device string, a netlink.Attributes) (MemoryRegion, uint32) {
	return MemoryRegion{
		Device: device, Number: pointer(a.Uint32(nldev.AttrMRN)), Length: value(a.Uint64(nldev.AttrLength)),
		LKey: pointer(a.Uint32(nldev.AttrLKey)), RKey: pointer(a.Uint32(nldev.AttrRKey)), PD: pointer(a.Uint32(nldev.AttrPDN)), Owner: p.owner(a),
	}, value(a.Uint32(nldev.AttrMRN))
}

func (p processes) protectionDomain(device string, a netlink.Attributes) (ProtectionDomain, uint32) {
	return ProtectionDomain{
		Device: device, Number: pointer(a.Uint32(nldev.AttrPDN)), Users: value(a.Uint64(nldev.AttrUses)), Owner: p.owner(a),
	}, value(a.Uint32(nldev.AttrPDN))
}

func (p processes) connectionID(device string, a netlink.Attributes) (ConnectionID, uint32) {
	return ConnectionID{
		Device: device, Port: int(value(a.Uint32(nldev.AttrPort))), Number: pointer(a.Uint32(nldev.AttrCMIDN)),
		QueuePair: value(a.Uint32(nldev.AttrLocalQPN)), Type: named(qpTypes, a, nldev.AttrType), State: named(cmStates, a, nldev.AttrState),
		PortSpace: portSpace(a), Source: address(a.Bytes(nldev.AttrSource)), Dest: address(a.Bytes(nldev.AttrDestination)), Owner: p.owner(a),
	}, value(a.Uint32(nldev.AttrCMIDN))
}

// value returns the value of an attribute, or 0 if it is missing.
func value[T any](v T, _ bool) T { return v }

// pointer returns a pointer to the value of an attribute, or nil if it is
// missing.
func pointer[T any](v T, is bool) *T {
	if !is {
		return nil
	}
	return &v
}

// The kernel's names of types and states, by number. The numbers are those of
// the kernel's own enums, not of verbs. The program rdma prints the same names.
var (
	qpTypes = map[uint8]string{
		0: "SMI", 1: "GSI", 2: "RC", 3: "UC", 4: "UD", 5: "RAW_IPV6", 6: "RAW_ETHERTYPE", 8: "RAW_PACKET", 9: "XRC_INI", 10: "XRC_TGT", 255: "DRIVER",
	}
	qpStates = map[uint8]string{0: "RESET", 1: "INIT", 2: "RTR", 3: "RTS", 4: "SQD", 5: "SQE", 6: "ERR"}
	cmStates = map[uint8]string{
		0: "IDLE", 1: "ADDR_QUERY", 2: "ADDR_RESOLVED", 3: "ROUTE_QUERY", 4: "ROUTE_RESOLVED", 5: "CONNECT", 6: "DISCONNECT",
		7: "ADDR_BOUND", 8: "LISTEN", 9: "DEVICE_REMOVAL", 10: "DESTROYING", 11: "ADDRINFO_QUERY", 12: "ADDRINFO_RESOLVED",
	}
	pollContexts = map[uint8]string{0: "DIRECT", 1: "SOFTIRQ", 2: "WORKQUEUE", 3: "UNBOUND_WORKQUEUE"}
	portSpaces   = map[uint32]string{0x0002: "IPOIB", 0x0106: "TCP", 0x0111: "UDP", 0x013F: "IB"}
)

// named returns the name of the number in an attribute, the number itself if it
// has no name, and "" if the attribute is missing.
func named(names map[uint8]string, a netlink.Attributes, attribute uint16) string {
	v, is := a.Uint8(attribute)
	if !is {
		return ""
	}
	return cmp.Or(names[v], strconv.Itoa(int(v)))
}

func portSpace(a netlink.Attributes) string {
	v, is := a.Uint32(nldev.AttrPortSpace)
	if !is {
		return ""
	}
	return cmp.Or(portSpaces[v], fmt.Sprintf("%#x", v))
}

// address reads a struct sockaddr_in or sockaddr_in6 of Linux.
func address(b []byte) netip.AddrPort {
	const (
		ip4, ip6 = 2, 10 // AF_INET, AF_INET6
		size4    = 8     // family, port, address
		size6    = 28    // family, port, flow, address, scope
		at6      = 8
		atScope  = 24
	)
	if len(b) < size4 {
		return netip.AddrPort{}
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch family := binary.NativeEndian.Uint16(b); {
	case family == ip4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	case family == ip6 && len(b) >= size6:
		addr := netip.AddrFrom16([16]byte(b[at6:atScope]))
		if scope := binary.NativeEndian.Uint32(b[atScope:]); scope != 0 {
			addr = addr.WithZone(strconv.Itoa(int(scope)))
		}
		return netip.AddrPortFrom(addr, port)
	}
	return netip.AddrPort{}
}

// SharedNamespaces reports whether all network namespaces see all RDMA devices,
// which is Linux's default. Otherwise, each namespace sees only the devices
// that were moved to it. "rdma system" prints the same. SharedNamespaces fails
// if the kernel has no RDMA, and on systems other than Linux.
func SharedNamespaces() (shared bool, err error) {
	c, err := nldev.Open()
	if err != nil {
		return false, fmt.Errorf("stat: %w", err)
	}
	if shared, err = c.SharedNamespaces(); err != nil {
		err = fmt.Errorf("stat: %w", err)
	}
	return shared, errors.Join(err, c.Close())
}
