// SPDX-License-Identifier: Apache-2.0

// Package internal has the sources of packages that gen bind copies into other
// modules, where the packages that it makes import them. No program imports it.
package internal

import "embed"

// Sources has the files of these packages.
//
//go:embed bound/cerr/cerr.go bound/dl/dl.go bound/dl/doc.go bound/require/require.go enum/enum.go
//go:embed testutil/golden/enum.go testutil/golden/layout.go testutil/golden/union.go
var Sources embed.FS
