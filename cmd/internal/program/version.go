// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// Version returns two lines about what the program with the given name was
// built from.
func Version(name string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return Describe(name, info)
}

// Describe returns what the program with the given name was built from,
// according to info.
func Describe(name string, info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	module := info.Main.Version
	if module == "" || module == "(devel)" {
		module = "of a checkout"
	}
	text := name + " " + module
	if revision := settings["vcs.revision"]; revision != "" {
		text += ", revision " + revision[:min(12, len(revision))]
		if settings["vcs.modified"] == "true" {
			text += " with changes"
		}
		if at := settings["vcs.time"]; at != "" {
			text += " of " + strings.TrimSuffix(at, "Z")
		}
	}
	cgo := ""
	if settings["CGO_ENABLED"] == "0" {
		cgo = ", without cgo: it cannot use RDMA"
	}
	return text + fmt.Sprintf("\n%s %s/%s%s", runtime.Version(), runtime.GOOS, runtime.GOARCH, cgo)
}
