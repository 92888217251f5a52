// SPDX-License-Identifier: Apache-2.0

package link

import "github.com/verbena-go/verbena/generated/libibverbs"

// Layer is the link layer of a port.
type Layer = libibverbs.LinkLayer

// The link layers.
const (
	Unspecified Layer = libibverbs.IBV_LINK_LAYER_UNSPECIFIED
	InfiniBand  Layer = libibverbs.IBV_LINK_LAYER_INFINIBAND
	Ethernet    Layer = libibverbs.IBV_LINK_LAYER_ETHERNET
)
