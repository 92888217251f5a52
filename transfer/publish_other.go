// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package transfer

import (
	"context"

	"github.com/verbena-go/verbena/internal/cerr"
)

func (*Engine) publish() (end func(), err error) { return nil, cerr.Platform(opNew) }

// Engines returns the open engines whose Config.Publish is set, of all
// processes of this user. It always fails on this system, with an error
// matching errors.ErrUnsupported.
func Engines(context.Context) ([]EngineStats, error) { return nil, cerr.Platform("transfer.Engines") }
