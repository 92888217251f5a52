// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// Package tools names the programs that make lint and make apidiff run.
// tools/go.mod pins their versions, not go.mod: programs that import this
// module would get those too, and with them what these programs depend on. For
// the same reason the constraint above is the only one that go mod tidy heeds.
package tools

import (
	_ "golang.org/x/exp/cmd/apidiff"
	_ "honnef.co/go/tools/cmd/staticcheck"
	_ "mvdan.cc/gofumpt"
)
