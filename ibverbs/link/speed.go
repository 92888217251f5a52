// SPDX-License-Identifier: Apache-2.0

package link

import (
	"strconv"

	"github.com/verbena-go/verbena/internal/enum"
)

// Speed is a speed in Gb/s.
type Speed float64

// String returns the speed with its unit, such as 100 Gb/s.
func (s Speed) String() string { return strconv.FormatFloat(float64(s), 'g', -1, 64) + " Gb/s" }

// LaneSpeed encodes the speed of one lane of a link; see Rate.
type LaneSpeed uint32

// The speeds of one lane.
const (
	SDR   LaneSpeed = 1   // 2.5 Gb/s
	DDR   LaneSpeed = 2   // 5 Gb/s
	QDR   LaneSpeed = 4   // 10 Gb/s
	FDR10 LaneSpeed = 8   // 10 Gb/s
	FDR   LaneSpeed = 16  // 14 Gb/s
	EDR   LaneSpeed = 32  // 25 Gb/s
	HDR   LaneSpeed = 64  // 50 Gb/s
	NDR   LaneSpeed = 128 // 100 Gb/s
	XDR   LaneSpeed = 256 // 200 Gb/s
)

// The name of the type, Speed, appears in the text of unknown codes, which
// programs may have stored as JSON.
var speeds = enum.Values{Type: "Speed", Names: []enum.Name{
	{Value: int64(SDR), Name: "SDR"},
	{Value: int64(DDR), Name: "DDR"},
	{Value: int64(QDR), Name: "QDR"},
	{Value: int64(FDR10), Name: "FDR10"},
	{Value: int64(FDR), Name: "FDR"},
	{Value: int64(EDR), Name: "EDR"},
	{Value: int64(HDR), Name: "HDR"},
	{Value: int64(NDR), Name: "NDR"},
	{Value: int64(XDR), Name: "XDR"},
}}

// Rate returns the nominal speed of one lane, or 0 if it is unknown.
// SignalingRate and Throughput return the exact figures.
func (s LaneSpeed) Rate() Speed {
	return map[LaneSpeed]Speed{
		SDR: 2.5, DDR: 5, QDR: 10, FDR10: 10, FDR: 14,
		EDR: 25, HDR: 50, NDR: 100, XDR: 200,
	}[s]
}

// SignalingRate returns the bit rate of a lane on the wire, or 0 if it is
// unknown.
func (s LaneSpeed) SignalingRate() Speed { return laneRates[s].signaling }

// Throughput returns the part of the signaling rate that line code and error
// correction leave for packets, or 0 if it is unknown.
func (s LaneSpeed) Throughput() Speed {
	r := laneRates[s]
	return r.signaling * Speed(r.data)
}

// laneRates maps a speed to its signaling rate and the fraction of that rate
// that carries data.
var laneRates = map[LaneSpeed]struct {
	signaling Speed
	data      float64
}{
	SDR:   {2.5, code8b10b},
	DDR:   {5, code8b10b},
	QDR:   {10, code8b10b},
	FDR10: {10.3125, code64b66b},
	FDR:   {14.0625, code64b66b},
	EDR:   {25.78125, code64b66b},
	HDR:   {53.125, code256b257b},
	NDR:   {106.25, code256b257b},
	XDR:   {212.5, code256b257b},
}

// The fractions of the bits on a wire that are data.
const (
	code8b10b    = 8. / 10
	code64b66b   = 64. / 66
	code256b257b = 256. / 257 * 514 / 544 // including Reed-Solomon error correction
)

// String returns the name of the speed, such as HDR.
func (s LaneSpeed) String() string { return speeds.String(int64(s)) }

// MarshalText returns what String returns.
func (s LaneSpeed) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the text that String returns.
func (s *LaneSpeed) UnmarshalText(text []byte) error { return enum.UnmarshalText(&speeds, text, s) }
