// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/ibverbs"
)

// object is a JSON object whose members keep their order.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON writes the members one after the other.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%q:%s", m.name, value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// objects returns the devices as JSON objects with every field. It uses
// reflection, so that new fields appear, too.
func objects(devices []ibverbs.DeviceInfo) []object {
	all := []object{}
	for _, d := range devices {
		all = append(all, members(reflect.ValueOf(d)))
	}
	return all
}

// inline holds the names of fields whose own fields are put directly into the
// object.
var inline = map[string]bool{"Device": true}

func members(v reflect.Value) object {
	var o object
	for field, value := range v.Fields() {
		if field.Anonymous || inline[field.Name] {
			o = append(o, members(value)...)
			continue
		}
		o = append(o, member{snakeCase(field.Name), jsonValue(field.Name, value)})
	}
	return o
}

// masks holds the names of 64-bit fields in which each bit has a meaning. They
// are written as text, because JavaScript's numbers hold 53 bits.
var masks = map[string]bool{"PageSizeCap": true, "CompletionTimestampMask": true}

// mostExact is the largest integer up to which JavaScript's numbers are exact.
const mostExact = 1<<53 - 1

func jsonValue(name string, v reflect.Value) any {
	if mtu, ok := v.Interface().(ibverbs.MTU); ok {
		return mtu.Bytes()
	}
	if _, ok := v.Interface().(encoding.TextMarshaler); ok {
		return v.Interface()
	}
	switch v.Kind() {
	case reflect.Struct:
		return members(v)
	case reflect.Slice:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = jsonValue(name, v.Index(i))
		}
		return list
	case reflect.Uint64:
		if masks[name] {
			return "0x" + strconv.FormatUint(v.Uint(), 16)
		}
		return min(v.Uint(), mostExact)
	default:
		return v.Interface()
	}
}

// words matches the parts of field names. Those that do not begin with exactly
// one capital letter are listed, longer ones first.
var words = regexp.MustCompile(`NetDev|GUID|GIDs|GID|PKeys|PKey|QKey|SRQ|SGE|CQE|GRH|LID|LMC|MTU|ODP|PCI|RSS|TSO|VLs|XRC|AH|CQ|HW|ID|MR|MW|PD|QP|RC|SL|SM|UC|UD|WQ|WR|[A-Z][a-z0-9]*`)

// namesInJSON maps fields to their names in JSON, if these are not the fields'
// names in snake case. Most of them say the unit, which the field's name does
// not.
var namesInJSON = map[string]string{
	"Rate": "rate_gbps", "CoreClock": "core_clock_khz", "MaxMRSize": "max_mr_bytes", "MaxDeviceMemory": "max_device_memory_bytes",
	"MaxMessageSize": "max_message_bytes", "MinRate": "min_rate_kbps", "MaxRate": "max_rate_kbps", "Attr": "attributes",
}

// snakeCase returns the name of a field in JSON.
func snakeCase(name string) string {
	if other := namesInJSON[name]; other != "" {
		return other
	}
	return strings.ToLower(strings.Join(words.FindAllString(name, -1), "_"))
}
