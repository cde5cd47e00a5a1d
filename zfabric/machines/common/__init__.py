"""What two roles share: the reliable link, arithmetic of ranges, amounts and names, and the formats of rows."""
