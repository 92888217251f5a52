// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"io"
	"reflect"
	"text/tabwriter"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

const none = "-" // none is printed in the place of a missing value.

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

// print prints a report, which is a struct: each field on a line, so that none
// is forgotten.
func (l *local) print(out program.Output, report any) error {
	if l.asJSON {
		return out.JSON(report)
	}
	table := newTable(out.Stdout)
	printFields(table, reflect.ValueOf(report))
	return table.Flush()
}

func printFields(w io.Writer, v reflect.Value) {
	for field, value := range v.Fields() {
		switch {
		case field.Anonymous:
			printFields(w, value)
		case field.Tag.Get("json") != "-":
			fmt.Fprintf(w, "%s\t%s\n", field.Name, printed(field.Name, value))
		}
	}
}

// inHex holds the names of the fields that are printed in hexadecimal: they are
// identifiers and bit masks.
var inHex = map[string]bool{
	"DeviceID": true, "Revision": true, "VendorID": true, "Capabilities": true, "Capabilities2": true, "DiagCode": true,
}

func printed(name string, v reflect.Value) string {
	if inHex[name] {
		return fmt.Sprintf("%#x", v.Uint())
	}
	return fmt.Sprint(v.Interface())
}
