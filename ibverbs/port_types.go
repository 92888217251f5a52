package ibverbs

import (
	"fmt"
	"strconv"

	"github.com/verbena-go/verbena/internal/enum"
)

// PhysState is the state of a port's link below its logical state.
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

// MarshalText is String.
func (s PhysState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what String gives.
func (s *PhysState) UnmarshalText(text []byte) error { return parseName(&physStates, text, s) }

// LinkWidth is how many lanes a link has, as C encodes it.
type LinkWidth uint8

// The widths of links.
const (
	LinkWidth1X  LinkWidth = 1
	LinkWidth2X  LinkWidth = 16
	LinkWidth4X  LinkWidth = 2
	LinkWidth8X  LinkWidth = 4
	LinkWidth12X LinkWidth = 8
)

var linkWidths = enum.Values{Type: "LinkWidth", Names: []enum.Name{
	{Value: int64(LinkWidth1X), Name: "1X"},
	{Value: int64(LinkWidth2X), Name: "2X"},
	{Value: int64(LinkWidth4X), Name: "4X"},
	{Value: int64(LinkWidth8X), Name: "8X"},
	{Value: int64(LinkWidth12X), Name: "12X"},
}}

// Lanes returns the number of lanes, 0 if it is not known.
func (w LinkWidth) Lanes() int {
	return map[LinkWidth]int{LinkWidth1X: 1, LinkWidth2X: 2, LinkWidth4X: 4, LinkWidth8X: 8, LinkWidth12X: 12}[w]
}

// String returns the number of lanes, as in 4X.
func (w LinkWidth) String() string { return linkWidths.String(int64(w)) }

// MarshalText is String.
func (w LinkWidth) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText reads what String gives.
func (w *LinkWidth) UnmarshalText(text []byte) error { return parseName(&linkWidths, text, w) }

// LinkSpeed is the speed of one lane.
type LinkSpeed uint32

// The speeds of lanes, with their Gb/s.
const (
	SpeedSDR   LinkSpeed = 1   // 2.5
	SpeedDDR   LinkSpeed = 2   // 5
	SpeedQDR   LinkSpeed = 4   // 10
	SpeedFDR10 LinkSpeed = 8   // 10
	SpeedFDR   LinkSpeed = 16  // 14
	SpeedEDR   LinkSpeed = 32  // 25
	SpeedHDR   LinkSpeed = 64  // 50
	SpeedNDR   LinkSpeed = 128 // 100
	SpeedXDR   LinkSpeed = 256 // 200
)

var linkSpeeds = enum.Values{Type: "LinkSpeed", Names: []enum.Name{
	{Value: int64(SpeedSDR), Name: "SDR"},
	{Value: int64(SpeedDDR), Name: "DDR"},
	{Value: int64(SpeedQDR), Name: "QDR"},
	{Value: int64(SpeedFDR10), Name: "FDR10"},
	{Value: int64(SpeedFDR), Name: "FDR"},
	{Value: int64(SpeedEDR), Name: "EDR"},
	{Value: int64(SpeedHDR), Name: "HDR"},
	{Value: int64(SpeedNDR), Name: "NDR"},
	{Value: int64(SpeedXDR), Name: "XDR"},
}}

// Rate returns the speed in Gb/s that goes by the name, 0 if it is not known;
// see SignalingRate and Throughput for what it is made of.
func (s LinkSpeed) Rate() float64 {
	return map[LinkSpeed]float64{
		SpeedSDR: 2.5, SpeedDDR: 5, SpeedQDR: 10, SpeedFDR10: 10, SpeedFDR: 14,
		SpeedEDR: 25, SpeedHDR: 50, SpeedNDR: 100, SpeedXDR: 200,
	}[s]
}

// SignalingRate returns how fast a lane's bits follow each other on the wire, in
// Gb/s, 0 if it is not known.
func (s LinkSpeed) SignalingRate() float64 { return laneRates[s].signaling }

// Throughput returns what the line code and error correction leave of the
// signaling rate for packets, in Gb/s, 0 if it is not known.
func (s LinkSpeed) Throughput() float64 {
	r := laneRates[s]
	return r.signaling * r.data
}

// laneRates has the signaling rate, and the part of it that is data.
var laneRates = map[LinkSpeed]struct{ signaling, data float64 }{
	SpeedSDR:   {2.5, code8b10b},
	SpeedDDR:   {5, code8b10b},
	SpeedQDR:   {10, code8b10b},
	SpeedFDR10: {10.3125, code64b66b},
	SpeedFDR:   {14.0625, code64b66b},
	SpeedEDR:   {25.78125, code64b66b},
	SpeedHDR:   {53.125, code256b257b},
	SpeedNDR:   {106.25, code256b257b},
	SpeedXDR:   {212.5, code256b257b},
}

// The parts of the bits on a wire that are data.
const (
	code8b10b    = 8. / 10
	code64b66b   = 64. / 66
	code256b257b = 256. / 257 * 514 / 544 // and Reed-Solomon error correction
)

// String returns the name of the speed, such as HDR.
func (s LinkSpeed) String() string { return linkSpeeds.String(int64(s)) }

// MarshalText is String.
func (s LinkSpeed) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what String gives.
func (s *LinkSpeed) UnmarshalText(text []byte) error { return parseName(&linkSpeeds, text, s) }

func parseName[T ~uint8 | ~uint32](names *enum.Values, text []byte, to *T) error {
	v, err := names.Parse(string(text))
	if err != nil {
		return err
	}
	if int64(T(v)) != v {
		return fmt.Errorf("%s: %d is out of range", names.Type, v)
	}
	*to = T(v)
	return nil
}

// MarshalText gives the unit in bytes.
func (m MTU) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads a unit in bytes: 256, 512, 1024, 2048 or 4096, or 0 for
// none.
func (m *MTU) UnmarshalText(text []byte) error {
	bytes, err := strconv.Atoi(string(text))
	if err == nil {
		for v := MTU(0); v <= 5; v++ {
			if v.Bytes() == bytes {
				*m = v
				return nil
			}
		}
	}
	return fmt.Errorf("%q is no MTU", text)
}
