// SPDX-License-Identifier: Apache-2.0

package report

import (
	"net"
	"os"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
)

// Private removes from a text what identifies a machine.
type Private struct {
	names map[string]string // what to write instead of a name
}

// NewPrivate returns what removes the names of this machine and of a device.
func NewPrivate(device ibverbs.DeviceInfo, others ...string) Private {
	p := Private{map[string]string{device.Device.Name: "DEVICE"}}
	if host, err := os.Hostname(); err == nil {
		p.names[host] = "HOST"
	}
	for _, port := range device.Ports {
		if port.NetDev != "" {
			p.names[port.NetDev] = "INTERFACE"
		}
	}
	for _, other := range others {
		p.names[other] = "PEER"
	}
	interfaces, _ := net.Interfaces() // without them, addresses are still found by their form
	for _, i := range interfaces {
		if len(i.Name) > 2 { // lo is a part of words
			p.names[i.Name] = "INTERFACE"
		}
	}
	delete(p.names, "")
	return p
}

// The forms of what identifies a machine: addresses of Ethernet, of IPv4, and
// of IPv6, which GIDs and GUIDs look like.
var forms = []struct {
	form    *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b`), "MAC"},
	{regexp.MustCompile(`(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}(?:%\w+)?`), "ADDRESS"},
	{regexp.MustCompile(`(?:[0-9a-fA-F]{1,4}:){1,7}:(?:[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4})*)?(?:(?:\d{1,3}\.){3}\d{1,3})?(?:%\w+)?`), "ADDRESS"},
	{regexp.MustCompile(`::(?:[0-9a-fA-F]{1,4}:){0,6}(?:(?:\d{1,3}\.){3}\d{1,3}|[0-9a-fA-F]{1,4}\b)`), "ADDRESS"},
	{regexp.MustCompile(`\b(?:\d{1,3}\.){3}\d{1,3}\b`), "ADDRESS"},
	{regexp.MustCompile(`\b0x[0-9a-fA-F]{16}\b`), "GUID"},
}

// Text returns a text without what identifies the machine.
func (p Private) Text(text string) string {
	names := make([]string, 0, len(p.names))
	for name := range p.names {
		names = append(names, name)
	}
	sort.Slice(names, func(i, j int) bool { return len(names[i]) > len(names[j]) })
	for _, name := range names {
		text = replaceWord(text, name, p.names[name])
	}
	for _, f := range forms {
		text = f.form.ReplaceAllString(text, f.instead)
	}
	return text
}

// replaceWord replaces a name where it is not a part of a longer one.
func replaceWord(text, name, instead string) string {
	var b strings.Builder
	for {
		i := strings.Index(text, name)
		if i < 0 {
			return b.String() + text
		}
		end := i + len(name)
		if i > 0 && inWord(text[i-1]) || end < len(text) && inWord(text[end]) {
			instead := text[i:end]
			b.WriteString(text[:i] + instead)
		} else {
			b.WriteString(text[:i] + instead)
		}
		text = text[end:]
	}
}

func inWord(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
}

// Results returns results without what identifies the machine.
func (p Private) Results(results []check.Result) []check.Result {
	results = slices.Clone(results)
	for i := range results {
		r := &results[i]
		r.Found, r.Notes, r.Cases = p.Text(r.Found), slices.Clone(r.Notes), slices.Clone(r.Cases)
		for j := range r.Notes {
			r.Notes[j] = p.Text(r.Notes[j])
		}
		for j := range r.Cases {
			r.Cases[j].Yours = p.Text(r.Cases[j].Yours)
		}
	}
	return results
}
