// SPDX-License-Identifier: Apache-2.0

package program

import "encoding/json"

// JSON writes a value to standard output as indented JSON.
func (o Output) JSON(value any) error {
	encoder := json.NewEncoder(o.Stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// JSONLine writes a value to standard output as a line of JSON.
func (o Output) JSONLine(value any) error { return json.NewEncoder(o.Stdout).Encode(value) }

// JSONLines adds the flag -j, which makes a program print JSON, one value on
// each line.
func (f *Flags) JSONLines(value *bool) {
	f.BoolVarP(value, "json", "j", false, "print a JSON object on each line")
}

// JSON adds the flag -j, which makes a program print JSON.
func (f *Flags) JSON(value *bool) { f.BoolVarP(value, "json", "j", false, "print JSON") }
