//go:build ignore

// Package tools names the programs that make lint runs. tools/go.mod pins their
// versions, not go.mod: whoever imports this module would get those too, and with
// them what these programs depend on. For the same reason the constraint above is
// the only one that go mod tidy heeds.
package tools

import (
	_ "honnef.co/go/tools/cmd/staticcheck"
	_ "mvdan.cc/gofumpt"
)
