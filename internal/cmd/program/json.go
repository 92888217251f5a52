// SPDX-License-Identifier: Apache-2.0

package program

import "encoding/json"

// JSON writes a value to standard output as indented JSON.
func (o Output) JSON(value any) error {
	encoder := json.NewEncoder(o.Stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// JSON adds the flag with which a program's output is JSON.
func (f *Flags) JSON(value *bool) { f.BoolVarP(value, "json", "j", false, "print JSON") }
