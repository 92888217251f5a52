// SPDX-License-Identifier: Apache-2.0

package hotplug

import (
	"path"
	"strings"
)

// Event reports that devices have appeared or disappeared.
type Event struct {
	Removed string // name of the removed device; if empty, the devices that programs can open may have changed
}

// parse parses an event of the kernel about any of its objects. Its lines end
// with a zero, and most have the form NAME=VALUE.
func parse(message []byte) (ev Event, ok bool) {
	values := map[string]string{}
	for line := range strings.SplitSeq(string(message), "\x00") {
		if name, value, found := strings.Cut(line, "="); found {
			values[name] = value
		}
	}
	action := values["ACTION"]
	if action != "add" && action != "remove" {
		return Event{}, false
	}
	switch values["SUBSYSTEM"] {
	case "infiniband_verbs": // the device that programs open, which is created and removed first
		return Event{}, true
	case "infiniband":
		if action == "remove" {
			ev.Removed = path.Base(values["DEVPATH"])
		}
		return ev, true
	}
	return Event{}, false
}
