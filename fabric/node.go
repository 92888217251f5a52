// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"context"
	"strings"
	"unicode"

	"github.com/verbena-go/verbena/internal/enum"
)

// NodeType is the type of a node.
type NodeType uint8

// The types of nodes.
const (
	ChannelAdapter NodeType = 1
	Switch         NodeType = 2
	Router         NodeType = 3
)

var nodeTypes = enum.Values{Type: "NodeType", Names: []enum.Name{
	{Value: int64(ChannelAdapter), Name: "Channel Adapter"},
	{Value: int64(Switch), Name: "Switch"},
	{Value: int64(Router), Name: "Router"},
}}

// String returns the name of the type, such as Switch.
func (t NodeType) String() string { return nodeTypes.String(int64(t)) }

// MarshalText returns what String returns.
func (t NodeType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText parses the text that String returns.
func (t *NodeType) UnmarshalText(text []byte) error { return enum.UnmarshalText(&nodeTypes, text, t) }

// NodeInfo describes a node. It is the attribute NodeInfo.
type NodeInfo struct {
	BaseVersion  uint8    `json:"base_version"`
	ClassVersion uint8    `json:"class_version"`
	Type         NodeType `json:"type"`
	NumPorts     int      `json:"num_ports"`   // number of the node's ports, without port 0 of a switch
	SystemGUID   GUID     `json:"system_guid"` // GUID of the machine or chassis; may be 0
	GUID         GUID     `json:"guid"`
	PortGUID     GUID     `json:"port_guid"`     // GUID of the port that was asked
	PartitionCap uint16   `json:"partition_cap"` // number of P_Keys of a port
	DeviceID     uint16   `json:"device_id"`
	Revision     uint32   `json:"revision"`
	LocalPort    int      `json:"local_port"` // number of the port that was asked
	VendorID     uint32   `json:"vendor_id"`
}

func decodeNodeInfo(a *attribute) NodeInfo {
	return NodeInfo{
		BaseVersion:  a.u8(0, 8),
		ClassVersion: a.u8(8, 8),
		Type:         NodeType(a.u8(16, 8)),
		NumPorts:     int(a.u8(24, 8)),
		SystemGUID:   GUID(a.u64(32)),
		GUID:         GUID(a.u64(96)),
		PortGUID:     GUID(a.u64(160)),
		PartitionCap: a.u16(224),
		DeviceID:     a.u16(240),
		Revision:     a.u32(256, 32),
		LocalPort:    int(a.u8(288, 8)),
		VendorID:     a.u32(296, 24),
	}
}

// NodeInfo asks the node at an address for its NodeInfo.
func (c *Client) NodeInfo(ctx context.Context, to Address) (NodeInfo, error) {
	answer, err := c.get(ctx, attrNodeInfo, to, 0)
	if err != nil {
		return NodeInfo{}, err
	}
	return decodeNodeInfo(answer), nil
}

// decodeDescription returns the text of an attribute NodeDescription, which is
// UTF-8 and ends at a 0. It replaces bytes that are not UTF-8, and characters
// that are not graphic, such as control characters and those that reverse the
// direction of the text, by the Unicode replacement character, because the text
// is printed.
func decodeDescription(a *attribute) string {
	text, _, _ := bytes.Cut(a[:smpSize], []byte{0})
	return strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) {
			return r
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(string(text), "\ufffd"))
}

// NodeDescription asks the node at an address for its description, which often
// contains the name of the machine.
func (c *Client) NodeDescription(ctx context.Context, to Address) (string, error) {
	answer, err := c.get(ctx, attrNodeDescription, to, 0)
	if err != nil {
		return "", err
	}
	return decodeDescription(answer), nil
}

// SwitchInfo describes a switch. It is the attribute SwitchInfo, which other
// nodes do not have.
type SwitchInfo struct {
	LinearFDBCap           uint16 `json:"linear_fdb_cap"`    // entries of the linear forwarding table
	RandomFDBCap           uint16 `json:"random_fdb_cap"`    // entries of the random forwarding table
	MulticastFDBCap        uint16 `json:"multicast_fdb_cap"` // entries of the multicast forwarding table
	LinearFDBTop           uint16 `json:"linear_fdb_top"`    // last entry in use of the linear forwarding table
	DefaultPort            uint8  `json:"default_port"`
	DefaultMulticastPort   uint8  `json:"default_multicast_port"`     // DefaultMulticastPrimaryPort of the specification
	DefaultMulticastOther  uint8  `json:"default_multicast_other"`    // DefaultMulticastNotPrimaryPort of the specification
	LifeTime               uint8  `json:"life_time"`                  // time that a packet may stay in the switch: 4.096 us * 2^LifeTime
	PortStateChange        bool   `json:"port_state_change"`          // whether a port has changed its state
	OptimizedSLtoVLMapping uint8  `json:"optimized_sl_to_vl_mapping"` // 2 bits
	LIDsPerPort            uint16 `json:"lids_per_port"`
	PartitionEnforcement   uint16 `json:"partition_enforcement_cap"` // number of P_Keys of an external port
	InboundEnforcement     bool   `json:"inbound_enforcement"`
	OutboundEnforcement    bool   `json:"outbound_enforcement"`
	FilterRawInbound       bool   `json:"filter_raw_inbound"`
	FilterRawOutbound      bool   `json:"filter_raw_outbound"`
	EnhancedPort0          bool   `json:"enhanced_port0"`
	MulticastFDBTop        uint16 `json:"multicast_fdb_top"`
}

func decodeSwitchInfo(a *attribute) SwitchInfo {
	return SwitchInfo{
		LinearFDBCap:           a.u16(0),
		RandomFDBCap:           a.u16(16),
		MulticastFDBCap:        a.u16(32),
		LinearFDBTop:           a.u16(48),
		DefaultPort:            a.u8(64, 8),
		DefaultMulticastPort:   a.u8(72, 8),
		DefaultMulticastOther:  a.u8(80, 8),
		LifeTime:               a.u8(88, 5),
		PortStateChange:        a.flag(93),
		OptimizedSLtoVLMapping: a.u8(94, 2),
		LIDsPerPort:            a.u16(96),
		PartitionEnforcement:   a.u16(112),
		InboundEnforcement:     a.flag(128),
		OutboundEnforcement:    a.flag(129),
		FilterRawInbound:       a.flag(130),
		FilterRawOutbound:      a.flag(131),
		EnhancedPort0:          a.flag(132),
		MulticastFDBTop:        a.u16(144),
	}
}

// SwitchInfo asks the switch at an address for its SwitchInfo. Other nodes
// answer with [StatusUnsupported].
func (c *Client) SwitchInfo(ctx context.Context, to Address) (SwitchInfo, error) {
	answer, err := c.get(ctx, attrSwitchInfo, to, 0)
	if err != nil {
		return SwitchInfo{}, err
	}
	return decodeSwitchInfo(answer), nil
}
