// SPDX-License-Identifier: Apache-2.0

package link

import "github.com/verbena-go/verbena/internal/enum"

// Width encodes the number of lanes of a link; see Lanes.
type Width uint8

// The link widths.
const (
	Width1X  Width = 1
	Width2X  Width = 16
	Width4X  Width = 2
	Width8X  Width = 4
	Width12X Width = 8
)

var widths = enum.Values{Type: "Width", Names: []enum.Name{
	{Value: int64(Width1X), Name: "1X"},
	{Value: int64(Width2X), Name: "2X"},
	{Value: int64(Width4X), Name: "4X"},
	{Value: int64(Width8X), Name: "8X"},
	{Value: int64(Width12X), Name: "12X"},
}}

// Lanes returns the number of lanes, or 0 if it is unknown.
func (w Width) Lanes() int {
	return map[Width]int{Width1X: 1, Width2X: 2, Width4X: 4, Width8X: 8, Width12X: 12}[w]
}

// String returns the number of lanes, such as 4X.
func (w Width) String() string { return widths.String(int64(w)) }

// MarshalText returns what String returns.
func (w Width) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText parses the text that String returns.
func (w *Width) UnmarshalText(text []byte) error { return enum.UnmarshalText(&widths, text, w) }
