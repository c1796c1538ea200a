"""A sheaf learned from a reference set: for each node, how unusual its write is given what the circuit gave it.

assign     which prompts fit and which calibrate, by a hash of their group
samples    writes a_v and what the circuit explains of them, e_v, at the positions judged
bases      principal directions of writes, of what is explained, and of the context
breadth    how long the prompts of a reference are, and what they end in
moments    counts, first and second moments by fold: they stream and merge
ridge      the learned restriction map, and the covariance of its cross-fitted residuals
learned    `D_v^2` and `u_v`: how unusual a write is, and how unusual what the node was given
expected   what a node was expected to write, and which parents carried it away from that
reference  the calibration part: z, conformal p-values, suspects, C_ref
positions  the same position by position: z at a token, and the alarm of a whole text
fit        the conductor: a reference set in, a `LearnedSheaf` out
"""
