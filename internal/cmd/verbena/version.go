// SPDX-License-Identifier: Apache-2.0

package verbena

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/verbena-go/verbena/internal/cmd/rdmadoctor/diagnose"
)

// version returns what --version prints.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return describe(info) + "\n" + diagnose.Libraries()
}

// describe says what a program was built from.
func describe(info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	module := info.Main.Version
	if module == "" || module == "(devel)" {
		module = "of a checkout"
	}
	text := "verbena " + module
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
