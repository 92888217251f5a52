package ibverbs

import "github.com/verbena-go/verbena/generated/libibverbs"

// ECE says which enhancements of a connection a device offers or has agreed
// on. Two ends exchange it while they connect. The options mean something to
// devices of the vendor alone.
type ECE struct {
	VendorID uint32 // 0: none
	Options  uint32
}

// SetECE tells the queue pair which enhancements to use, before it is ready to
// receive; see ibv_set_ece(3). It fails with errors.ErrUnsupported if the device
// has none, and for a VendorID of 0.
func (qp *QP) SetECE(ece ECE) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	raw := libibverbs.Ece{VendorId: ece.VendorID, Options: ece.Options}
	return wrap(qp.object.Name(), libibverbs.SetEce(qp.raw, &raw))
}

// QueryECE returns the enhancements that the device offers for the queue pair,
// or those that are in use once it is ready to receive; see ibv_query_ece(3).
// It fails with errors.ErrUnsupported if the device has none.
func (qp *QP) QueryECE() (ECE, error) {
	if err := qp.self().Use(); err != nil {
		return ECE{}, err
	}
	defer qp.object.Done()
	var raw libibverbs.Ece
	if err := libibverbs.QueryEce(qp.raw, &raw); err != nil {
		return ECE{}, wrap(qp.object.Name(), err)
	}
	return ECE{VendorID: raw.VendorId, Options: raw.Options}, nil
}
