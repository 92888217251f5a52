// SPDX-License-Identifier: Apache-2.0

package link

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/enum"
)

// State is the logical state of a port.
type State = libibverbs.PortState

// The states of a port.
const (
	Down        State = libibverbs.IBV_PORT_DOWN         // there is no link
	Init        State = libibverbs.IBV_PORT_INIT         // the link is up, but carries only the subnet manager's packets
	Armed       State = libibverbs.IBV_PORT_ARMED        // configured by the subnet manager, not yet activated
	Active      State = libibverbs.IBV_PORT_ACTIVE       // the port carries data
	ActiveDefer State = libibverbs.IBV_PORT_ACTIVE_DEFER // active, while the link recovers from errors
)

// PhysState is the physical state of a port's link.
type PhysState uint8

// The physical states of a port, as the InfiniBand specification numbers them.
const (
	PhysSleep             PhysState = 1
	PhysPolling           PhysState = 2
	PhysDisabled          PhysState = 3
	PhysTraining          PhysState = 4
	PhysLinkUp            PhysState = 5
	PhysLinkErrorRecovery PhysState = 6
	PhysTest              PhysState = 7
)

var physStates = enum.Values{Type: "PhysState", Names: []enum.Name{
	{Value: int64(PhysSleep), Name: "Sleep"},
	{Value: int64(PhysPolling), Name: "Polling"},
	{Value: int64(PhysDisabled), Name: "Disabled"},
	{Value: int64(PhysTraining), Name: "PortConfigurationTraining"},
	{Value: int64(PhysLinkUp), Name: "LinkUp"},
	{Value: int64(PhysLinkErrorRecovery), Name: "LinkErrorRecovery"},
	{Value: int64(PhysTest), Name: "Phy Test"},
}}

// String returns the kernel's name of the state.
func (s PhysState) String() string { return physStates.String(int64(s)) }

// MarshalText returns what String returns.
func (s PhysState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the text that String returns.
func (s *PhysState) UnmarshalText(text []byte) error { return enum.UnmarshalText(&physStates, text, s) }
