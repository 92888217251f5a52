// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"strings"

	"github.com/verbena-go/verbena/ibverbs/link"
)

// WidthSet is a set of widths of a link: each bit is a [link.Width].
type WidthSet uint8

// Has reports whether the set contains a width.
func (s WidthSet) Has(w link.Width) bool { return w != 0 && s&WidthSet(w) == WidthSet(w) }

// All returns the widths of the set, the narrowest first.
func (s WidthSet) All() []link.Width {
	var all []link.Width
	for _, w := range []link.Width{link.Width1X, link.Width2X, link.Width4X, link.Width8X, link.Width12X} {
		if s.Has(w) {
			all = append(all, w)
		}
	}
	return all
}

// String returns the widths, such as 1X or 4X.
func (s WidthSet) String() string { return join(s.All()) }

// MarshalText returns what String returns.
func (s WidthSet) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// SpeedSet is a set of speeds of a lane: each bit is a [link.LaneSpeed].
type SpeedSet uint16

// Has reports whether the set contains a speed.
func (s SpeedSet) Has(speed link.LaneSpeed) bool {
	return speed != 0 && link.LaneSpeed(s)&speed == speed
}

// All returns the speeds of the set, the slowest first.
func (s SpeedSet) All() []link.LaneSpeed {
	var all []link.LaneSpeed
	for speed := link.SDR; speed <= link.XDR; speed <<= 1 {
		if s.Has(speed) {
			all = append(all, speed)
		}
	}
	return all
}

// String returns the speeds, such as SDR or QDR.
func (s SpeedSet) String() string { return join(s.All()) }

// MarshalText returns what String returns.
func (s SpeedSet) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func join[T interface{ String() string }](all []T) string {
	if len(all) == 0 {
		return "none"
	}
	texts := make([]string, len(all))
	for i, v := range all {
		texts[i] = v.String()
	}
	return strings.Join(texts, " or ")
}

// PortInfo is the state and configuration of a port: the attribute PortInfo. On
// a switch, only port 0 has LIDs, capabilities and M_Keys: on other ports,
// these fields mean nothing.
type PortInfo struct {
	MKey                 uint64         `json:"-"` // a secret; 0 if the port hides it
	GIDPrefix            uint64         `json:"-"` // prefix of the subnet
	LID                  LID            `json:"lid"`
	SMLID                LID            `json:"sm_lid"` // LID of the master subnet manager
	Capabilities         uint32         `json:"capabilities"`
	Capabilities2        uint16         `json:"capabilities2"`
	DiagCode             uint16         `json:"diag_code"`
	MKeyLeasePeriod      uint16         `json:"m_key_lease_period"` // in seconds
	LocalPort            int            `json:"local_port"`         // number of the port through which the request came
	WidthEnabled         WidthSet       `json:"width_enabled"`
	WidthSupported       WidthSet       `json:"width_supported"`
	Width                link.Width     `json:"width"` // valid if the link is up, as is Speed
	SpeedEnabled         SpeedSet       `json:"speed_enabled"`
	SpeedSupported       SpeedSet       `json:"speed_supported"`
	Speed                link.LaneSpeed `json:"speed"`
	State                link.State     `json:"state"`
	PhysState            link.PhysState `json:"phys_state"`
	DownDefaultState     link.PhysState `json:"down_default_state"` // state that the link takes when it goes down: sleep or polling
	MKeyProtect          uint8          `json:"m_key_protect"`
	LMC                  uint8          `json:"lmc"`          // the port has 2^LMC LIDs from LID on
	NeighborMTU          int            `json:"neighbor_mtu"` // in bytes, as MTUCap; 0 if it is unknown
	MTUCap               int            `json:"mtu_cap"`
	SMSL                 uint8          `json:"sm_sl"`
	VLCap                uint8          `json:"vl_cap"`          // code of the number of data VLs that the port has: 1 to 5 mean 1, 2, 4, 8 and 15
	OperationalVLs       uint8          `json:"operational_vls"` // code of the number of data VLs in use
	InitType             uint8          `json:"init_type"`
	InitTypeReply        uint8          `json:"init_type_reply"`
	VLHighLimit          uint8          `json:"vl_high_limit"`
	VLArbitrationHighCap uint8          `json:"vl_arbitration_high_cap"`
	VLArbitrationLowCap  uint8          `json:"vl_arbitration_low_cap"`
	VLStallCount         uint8          `json:"vl_stall_count"`
	HOQLife              uint8          `json:"hoq_life"`
	PartitionInbound     bool           `json:"partition_enforcement_inbound"`
	PartitionOutbound    bool           `json:"partition_enforcement_outbound"`
	FilterRawInbound     bool           `json:"filter_raw_inbound"`
	FilterRawOutbound    bool           `json:"filter_raw_outbound"`
	MKeyViolations       uint16         `json:"m_key_violations"`
	PKeyViolations       uint16         `json:"p_key_violations"`
	QKeyViolations       uint16         `json:"q_key_violations"`
	GUIDCap              uint8          `json:"guid_cap"` // number of GUIDs that the port can have
	ClientReregister     bool           `json:"client_reregister"`
	MulticastPKeyTraps   uint8          `json:"multicast_p_key_trap_suppression"`
	SubnetTimeout        uint8          `json:"subnet_timeout"`      // 4.096 us * 2^SubnetTimeout
	ResponseTime         uint8          `json:"response_time_value"` // 4.096 us * 2^ResponseTime
	LocalPhysErrors      uint8          `json:"local_phys_errors"`   // threshold
	OverrunErrors        uint8          `json:"overrun_errors"`      // threshold
	MaxCreditHint        uint16         `json:"max_credit_hint"`
	LinkRoundTripLatency uint32         `json:"link_round_trip_latency"`
}

// mtu returns the MTU in bytes that a code stands for, or 0 for an unknown one.
func mtu(code uint8) int {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}

// The numbers of bits by which the fields with extended speeds are shifted to
// get a LaneSpeed.
const (
	extShift  = 4 // for LinkSpeedExt, whose bit 0 is FDR
	ext2Shift = 8 // for LinkSpeedExt2, whose bit 0 is XDR
)

// extDisabled is the value of LinkSpeedExtEnabled with which no extended speed
// is enabled.
const extDisabled = 30

// activeSpeed returns the speed of a link from the three fields that describe
// it. If an extended field is set, the link has that speed.
func activeSpeed(speed, ext, ext2 uint8) link.LaneSpeed {
	switch {
	case ext2 != 0:
		return link.LaneSpeed(ext2) << ext2Shift
	case ext != 0:
		return link.LaneSpeed(ext) << extShift
	}
	return link.LaneSpeed(speed)
}

// speedSet returns the set of speeds from the three fields that describe it.
func speedSet(speeds, ext, ext2 uint8) SpeedSet {
	if ext == extDisabled {
		ext = 0
	}
	return SpeedSet(speeds) | SpeedSet(ext&0xf)<<extShift | SpeedSet(ext2&1)<<ext2Shift
}

func decodePortInfo(a *attribute) PortInfo {
	return PortInfo{
		MKey:                 a.u64(0),
		GIDPrefix:            a.u64(64),
		LID:                  LID(a.u16(128)),
		SMLID:                LID(a.u16(144)),
		Capabilities:         a.u32(160, 32),
		DiagCode:             a.u16(192),
		MKeyLeasePeriod:      a.u16(208),
		LocalPort:            int(a.u8(224, 8)),
		WidthEnabled:         WidthSet(a.u8(232, 8)),
		WidthSupported:       WidthSet(a.u8(240, 8)),
		Width:                link.Width(a.u8(248, 8)),
		SpeedSupported:       speedSet(a.u8(256, 4), a.u8(500, 4), a.u8(451, 2)),
		State:                link.State(a.u8(260, 4)),
		PhysState:            link.PhysState(a.u8(264, 4)),
		DownDefaultState:     link.PhysState(a.u8(268, 4)),
		MKeyProtect:          a.u8(272, 2),
		LMC:                  a.u8(277, 3),
		Speed:                activeSpeed(a.u8(280, 4), a.u8(496, 4), a.u8(449, 2)),
		SpeedEnabled:         speedSet(a.u8(284, 4), a.u8(507, 5), a.u8(453, 3)),
		NeighborMTU:          mtu(a.u8(288, 4)),
		SMSL:                 a.u8(292, 4),
		VLCap:                a.u8(296, 4),
		InitType:             a.u8(300, 4),
		VLHighLimit:          a.u8(304, 8),
		VLArbitrationHighCap: a.u8(312, 8),
		VLArbitrationLowCap:  a.u8(320, 8),
		InitTypeReply:        a.u8(328, 4),
		MTUCap:               mtu(a.u8(332, 4)),
		VLStallCount:         a.u8(336, 3),
		HOQLife:              a.u8(339, 5),
		OperationalVLs:       a.u8(344, 4),
		PartitionInbound:     a.flag(348),
		PartitionOutbound:    a.flag(349),
		FilterRawInbound:     a.flag(350),
		FilterRawOutbound:    a.flag(351),
		MKeyViolations:       a.u16(352),
		PKeyViolations:       a.u16(368),
		QKeyViolations:       a.u16(384),
		GUIDCap:              a.u8(400, 8),
		ClientReregister:     a.flag(408),
		MulticastPKeyTraps:   a.u8(409, 2),
		SubnetTimeout:        a.u8(411, 5),
		ResponseTime:         a.u8(419, 5),
		LocalPhysErrors:      a.u8(424, 4),
		OverrunErrors:        a.u8(428, 4),
		MaxCreditHint:        a.u16(432),
		LinkRoundTripLatency: a.u32(456, 24),
		Capabilities2:        a.u16(480),
	}
}

// PortInfo asks the node at an address about one of its ports. Port 0 of a
// switch is the one that is managed; port 0 of another node stands for the port
// that the request arrives at.
func (c *Client) PortInfo(ctx context.Context, to Address, port int) (PortInfo, error) {
	if port < 0 || port > maxPort {
		return PortInfo{}, c.refuse("PortInfo", to, "port is %d, want 0 to %d", port, maxPort)
	}
	answer, err := c.get(ctx, attrPortInfo, to, uint32(port))
	if err != nil {
		return PortInfo{}, err
	}
	return decodePortInfo(answer), nil
}
