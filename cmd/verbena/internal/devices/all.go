// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/verbena-go/verbena/ibverbs"
)

// nameWidth is the width of the column with the names.
const nameWidth = 28

// printAll prints every field of every device. It uses reflection, so that new
// fields are printed, too.
func printAll(w io.Writer, devices []ibverbs.DeviceInfo) {
	for i, d := range devices {
		if i > 0 {
			fmt.Fprintln(w)
		}
		printFields(w, 0, reflect.ValueOf(d))
	}
}

func printFields(w io.Writer, depth int, v reflect.Value) {
	for field, value := range v.Fields() {
		if field.Anonymous {
			printFields(w, depth, value)
			continue
		}
		printField(w, depth, field.Name, value)
	}
}

func printField(w io.Writer, depth int, name string, v reflect.Value) {
	_, isText := v.Interface().(fmt.Stringer)
	switch indent := strings.Repeat("  ", depth); {
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			printField(w, depth, strings.TrimSuffix(name, "s"), v.Index(i))
		}
	case v.Kind() == reflect.Struct && !isText:
		fmt.Fprintf(w, "%s%s\n", indent, name)
		printFields(w, depth+1, v)
	default:
		fmt.Fprintf(w, "%s%-*s%v\n", indent, nameWidth-len(indent), name, v.Interface())
	}
}
