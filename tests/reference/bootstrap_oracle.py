"""The crossed bootstrap with every draw counted, none at random: what the sampled one is tested against.

Owen 2007, "The Pigeonhole Bootstrap": S rows and Q columns are drawn with replacement, each of the S^S and Q^Q ordered
draws alike; the value is the mean of all cells of the drawn rows and columns, repeated ones included.
"""

import itertools


def every_crossed_mean(matrices):
    """The mean of each possible repetition, for a list of test sets (rows of numbers, a row a seed), as a list."""
    seeds = range(len(matrices[0]))
    found = []
    for rows in itertools.product(seeds, repeat=len(seeds)):
        of_sets = []
        for matrix in matrices:
            columns = range(len(matrix[0]))
            of_set = []
            for drawn in itertools.product(columns, repeat=len(columns)):
                total = 0.0
                for row in rows:
                    for column in drawn:
                        total += matrix[row][column]
                of_set.append(total / (len(rows) * len(drawn)))
            of_sets.append(of_set)
        # the columns of the test sets are drawn apart, the rows together
        for means in itertools.product(*of_sets):
            found.append(sum(means) / len(means))
    return found


def quantile(values, share):
    """The smallest value with at least this share of all at or below it."""
    ordered = sorted(values)
    for place, value in enumerate(ordered, start=1):
        if place / len(ordered) >= share - 1e-12:
            return value
    return ordered[-1]
