//go:build tools

// Package tools pins the versions of the programs that make lint runs.
package tools

import (
	_ "honnef.co/go/tools/cmd/staticcheck"
	_ "mvdan.cc/gofumpt"
)
