// SPDX-License-Identifier: Apache-2.0

package fabric

import "context"

// AllPorts is a port number that stands for all ports of a node together. A
// node supports it if [Performance.AllPorts] says so.
const AllPorts = 255

// Performance says what a node's performance management supports. It is a part
// of the attribute ClassPortInfo.
type Performance struct {
	Capabilities  uint16 `json:"capabilities"`
	Capabilities2 uint32 `json:"capabilities2"`       // CapabilityMask2, which has 27 bits
	ResponseTime  uint8  `json:"response_time_value"` // 4.096 us * 2^ResponseTime
}

// The bits of Performance.Capabilities and, after them, of
// Performance.Capabilities2.
const (
	perfAllPorts       = 1 << 8
	perfExtended       = 1 << 9
	perfExtendedNoKind = 1 << 10 // the node has extended counters, but not those of unicast and multicast packets
	perfXmitWait       = 1 << 12
	perfQP1Dropped     = 1 << 15

	perfExtendedErrors = 1 << 1
)

// AllPorts reports whether the node adds up the counters of all its ports.
func (p Performance) AllPorts() bool { return p.Capabilities&perfAllPorts != 0 }

// Extended reports whether the node has [ExtendedCounters].
func (p Performance) Extended() bool {
	return p.Capabilities&(perfExtended|perfExtendedNoKind) != 0
}

// ExtendedByKind reports whether the extended counters include those of unicast
// and multicast packets.
func (p Performance) ExtendedByKind() bool { return p.Capabilities&perfExtended != 0 }

// ExtendedErrors reports whether the extended counters include those of errors.
func (p Performance) ExtendedErrors() bool { return p.Capabilities2&perfExtendedErrors != 0 }

// XmitWait reports whether the node has the counter PortXmitWait.
func (p Performance) XmitWait() bool { return p.Capabilities&perfXmitWait != 0 }

// QP1Dropped reports whether the node has the counter QP1Dropped.
func (p Performance) QP1Dropped() bool { return p.Capabilities&perfQP1Dropped != 0 }

func decodePerformance(a *attribute) Performance {
	return Performance{Capabilities: a.u16(16), Capabilities2: a.u32(32, 27), ResponseTime: a.u8(59, 5)}
}

// Performance asks the node with a LID what its performance management can do.
func (c *Client) Performance(ctx context.Context, lid LID) (Performance, error) {
	answer, err := c.perf(ctx, attrClassPortInfo, lid, 0, &attribute{}, false)
	if err != nil {
		return Performance{}, err
	}
	return decodePerformance(answer), nil
}

// Counter is one counter of a port. It does not wrap: it stops at its largest
// value until it is reset.
type Counter struct {
	Name  string // name in the InfiniBand specification and in perfquery, such as PortRcvErrors
	Value uint64
	Max   uint64 // largest value that the counter can have
}

// Saturated reports whether the counter has its largest value, so that it may
// have missed events.
func (c Counter) Saturated() bool { return c.Value == c.Max }

// place says where in an attribute a counter is.
type place struct {
	name          string
	offset, width int
	value         *uint64
}

// Counters are the counters of a port: the attribute PortCounters. They stop at
// their largest values, which differ; see [Counters.All].
type Counters struct {
	SymbolErrors                 uint64 `json:"symbol_errors"`
	LinkErrorRecovery            uint64 `json:"link_error_recovery"` // times that the link recovered from errors
	LinkDowned                   uint64 `json:"link_downed"`         // times that the link failed to recover, and went down
	RcvErrors                    uint64 `json:"rcv_errors"`
	RcvRemotePhysicalErrors      uint64 `json:"rcv_remote_physical_errors"`
	RcvSwitchRelayErrors         uint64 `json:"rcv_switch_relay_errors"`
	XmitDiscards                 uint64 `json:"xmit_discards"`
	XmitConstraintErrors         uint64 `json:"xmit_constraint_errors"`
	RcvConstraintErrors          uint64 `json:"rcv_constraint_errors"`
	LocalLinkIntegrityErrors     uint64 `json:"local_link_integrity_errors"`
	ExcessiveBufferOverrunErrors uint64 `json:"excessive_buffer_overrun_errors"`
	QP1Dropped                   uint64 `json:"qp1_dropped"` // 0 unless Performance.QP1Dropped
	VL15Dropped                  uint64 `json:"vl15_dropped"`
	XmitData                     uint64 `json:"xmit_data"` // in units of 4 bytes
	RcvData                      uint64 `json:"rcv_data"`  // in units of 4 bytes
	XmitPackets                  uint64 `json:"xmit_packets"`
	RcvPackets                   uint64 `json:"rcv_packets"`
	XmitWait                     uint64 `json:"xmit_wait"` // ticks in which data waited; 0 unless Performance.XmitWait
}

func (c *Counters) places() []place {
	return []place{
		{"SymbolErrorCounter", 32, 16, &c.SymbolErrors},
		{"LinkErrorRecoveryCounter", 48, 8, &c.LinkErrorRecovery},
		{"LinkDownedCounter", 56, 8, &c.LinkDowned},
		{"PortRcvErrors", 64, 16, &c.RcvErrors},
		{"PortRcvRemotePhysicalErrors", 80, 16, &c.RcvRemotePhysicalErrors},
		{"PortRcvSwitchRelayErrors", 96, 16, &c.RcvSwitchRelayErrors},
		{"PortXmitDiscards", 112, 16, &c.XmitDiscards},
		{"PortXmitConstraintErrors", 128, 8, &c.XmitConstraintErrors},
		{"PortRcvConstraintErrors", 136, 8, &c.RcvConstraintErrors},
		{"LocalLinkIntegrityErrors", 152, 4, &c.LocalLinkIntegrityErrors},
		{"ExcessiveBufferOverrunErrors", 156, 4, &c.ExcessiveBufferOverrunErrors},
		{"QP1Dropped", 160, 16, &c.QP1Dropped},
		{"VL15Dropped", 176, 16, &c.VL15Dropped},
		{"PortXmitData", 192, 32, &c.XmitData},
		{"PortRcvData", 224, 32, &c.RcvData},
		{"PortXmitPkts", 256, 32, &c.XmitPackets},
		{"PortRcvPkts", 288, 32, &c.RcvPackets},
		{"PortXmitWait", 320, 32, &c.XmitWait},
	}
}

// All returns the counters with their names and largest values, in the order of
// the specification.
func (c Counters) All() []Counter { return list(c.places()) }

// ExtendedCounters are counters of a port that have 64 bits: the attribute
// PortCountersExtended. SymbolErrors and the fields after it are 0 unless
// [Performance.ExtendedErrors].
type ExtendedCounters struct {
	XmitData             uint64 `json:"xmit_data"` // in units of 4 bytes
	RcvData              uint64 `json:"rcv_data"`  // in units of 4 bytes
	XmitPackets          uint64 `json:"xmit_packets"`
	RcvPackets           uint64 `json:"rcv_packets"`
	UnicastXmitPackets   uint64 `json:"unicast_xmit_packets"` // this and the next three are 0 unless Performance.ExtendedByKind
	UnicastRcvPackets    uint64 `json:"unicast_rcv_packets"`
	MulticastXmitPackets uint64 `json:"multicast_xmit_packets"`
	MulticastRcvPackets  uint64 `json:"multicast_rcv_packets"`

	SymbolErrors                 uint64 `json:"symbol_errors"`
	LinkErrorRecovery            uint64 `json:"link_error_recovery"`
	LinkDowned                   uint64 `json:"link_downed"`
	RcvErrors                    uint64 `json:"rcv_errors"`
	RcvRemotePhysicalErrors      uint64 `json:"rcv_remote_physical_errors"`
	RcvSwitchRelayErrors         uint64 `json:"rcv_switch_relay_errors"`
	XmitDiscards                 uint64 `json:"xmit_discards"`
	XmitConstraintErrors         uint64 `json:"xmit_constraint_errors"`
	RcvConstraintErrors          uint64 `json:"rcv_constraint_errors"`
	LocalLinkIntegrityErrors     uint64 `json:"local_link_integrity_errors"`
	ExcessiveBufferOverrunErrors uint64 `json:"excessive_buffer_overrun_errors"`
	VL15Dropped                  uint64 `json:"vl15_dropped"`
	XmitWait                     uint64 `json:"xmit_wait"`
	QP1Dropped                   uint64 `json:"qp1_dropped"`
}

func (c *ExtendedCounters) places() []place {
	return []place{
		{"PortXmitData", 64, 64, &c.XmitData},
		{"PortRcvData", 128, 64, &c.RcvData},
		{"PortXmitPkts", 192, 64, &c.XmitPackets},
		{"PortRcvPkts", 256, 64, &c.RcvPackets},
		{"PortUnicastXmitPkts", 320, 64, &c.UnicastXmitPackets},
		{"PortUnicastRcvPkts", 384, 64, &c.UnicastRcvPackets},
		{"PortMulticastXmitPkts", 448, 64, &c.MulticastXmitPackets},
		{"PortMulticastRcvPkts", 512, 64, &c.MulticastRcvPackets},
		{"SymbolErrorCounter", 576, 64, &c.SymbolErrors},
		{"LinkErrorRecoveryCounter", 640, 64, &c.LinkErrorRecovery},
		{"LinkDownedCounter", 704, 64, &c.LinkDowned},
		{"PortRcvErrors", 768, 64, &c.RcvErrors},
		{"PortRcvRemotePhysicalErrors", 832, 64, &c.RcvRemotePhysicalErrors},
		{"PortRcvSwitchRelayErrors", 896, 64, &c.RcvSwitchRelayErrors},
		{"PortXmitDiscards", 960, 64, &c.XmitDiscards},
		{"PortXmitConstraintErrors", 1024, 64, &c.XmitConstraintErrors},
		{"PortRcvConstraintErrors", 1088, 64, &c.RcvConstraintErrors},
		{"LocalLinkIntegrityErrors", 1152, 64, &c.LocalLinkIntegrityErrors},
		{"ExcessiveBufferOverrunErrors", 1216, 64, &c.ExcessiveBufferOverrunErrors},
		{"VL15Dropped", 1280, 64, &c.VL15Dropped},
		{"PortXmitWait", 1344, 64, &c.XmitWait},
		{"QP1Dropped", 1408, 64, &c.QP1Dropped},
	}
}

// All returns the counters with their names and largest values, in the order of
// the specification.
func (c ExtendedCounters) All() []Counter { return list(c.places()) }

func list(places []place) []Counter {
	all := make([]Counter, len(places))
	for i, p := range places {
		all[i] = Counter{p.name, *p.value, 1<<p.width - 1}
	}
	return all
}

func decodePlaces(a *attribute, places []place) {
	for _, p := range places {
		*p.value = a.field(p.offset, p.width)
	}
}

// The bit offsets in both attributes of the port number, and of the masks that
// say which counters a reset sets to 0.
const (
	portSelect        = 8  // has 8 bits
	counterSelect     = 16 // has 16 bits
	counterSelect2    = 144
	extCounterSelect2 = 32
)

// The bit offsets at which the optional parts of the extended counters begin.
const (
	extByKind = 320
	extErrors = 576
)

// Counters reads the counters of a port of the node with a LID. On a channel
// adapter, port must be the number of the port with the LID. With AllPorts,
// Counters reads the sums over all ports. Counters asks for [Performance]
// first: it returns 0 for counters that the node does not have, because the
// node may send any value for these.
func (c *Client) Counters(ctx context.Context, lid LID, port int) (Counters, error) {
	p, answer, err := c.readCounters(ctx, attrCounters, lid, port)
	if err != nil {
		return Counters{}, err
	}
	var counters Counters
	decodePlaces(answer, counters.places())
	if !p.XmitWait() {
		counters.XmitWait = 0
	}
	if !p.QP1Dropped() {
		counters.QP1Dropped = 0
	}
	return counters, nil
}

// ExtendedCounters reads the extended counters of a port, as Counters does. A
// node that has no extended counters answers with a [Status].
func (c *Client) ExtendedCounters(ctx context.Context, lid LID, port int) (ExtendedCounters, error) {
	p, answer, err := c.readCounters(ctx, attrExtCounters, lid, port)
	if err != nil {
		return ExtendedCounters{}, err
	}
	if !p.ExtendedByKind() {
		clear(answer[extByKind/8 : extErrors/8])
	}
	if !p.ExtendedErrors() {
		clear(answer[extErrors/8:])
	}
	var counters ExtendedCounters
	decodePlaces(answer, counters.places())
	if !p.XmitWait() {
		counters.XmitWait = 0
	}
	if !p.QP1Dropped() {
		counters.QP1Dropped = 0
	}
	return counters, nil
}

func (c *Client) readCounters(ctx context.Context, what attributeID, lid LID, port int) (Performance, *attribute, error) {
	p, err := c.Performance(ctx, lid)
	if err != nil {
		return p, nil, err
	}
	data := &attribute{}
	data.setField(portSelect, 8, uint64(port))
	answer, err := c.perf(ctx, what, lid, port, data, false)
	return p, answer, err
}

// ResetCounters sets the Counters of a port to 0. With AllPorts, it resets the
// Counters of all ports of the node.
func (c *Client) ResetCounters(ctx context.Context, lid LID, port int) error {
	p, err := c.Performance(ctx, lid)
	if err != nil {
		return err
	}
	data := &attribute{}
	data.setField(counterSelect, 16, 0xffff)
	var more uint64
	if p.XmitWait() {
		more |= 1
	}
	if p.QP1Dropped() {
		more |= 2
	}
	data.setField(counterSelect2, 8, more)
	return c.reset(ctx, attrCounters, lid, port, data)
}

// ResetExtendedCounters sets the ExtendedCounters of a port to 0, as
// ResetCounters does. Nodes differ in whether this also resets Counters.
func (c *Client) ResetExtendedCounters(ctx context.Context, lid LID, port int) error {
	p, err := c.Performance(ctx, lid)
	if err != nil {
		return err
	}
	data := &attribute{}
	data.setField(counterSelect, 16, 0xffff)
	var more uint64
	if p.ExtendedErrors() {
		more = 0xfff
		if p.XmitWait() {
			more |= 1 << 12
		}
		if p.QP1Dropped() {
			more |= 1 << 13
		}
	}
	data.setField(extCounterSelect2, 32, more)
	return c.reset(ctx, attrExtCounters, lid, port, data)
}

func (c *Client) reset(ctx context.Context, what attributeID, lid LID, port int, data *attribute) error {
	data.setField(portSelect, 8, uint64(port))
	_, err := c.perf(ctx, what, lid, port, data, true)
	return err
}
